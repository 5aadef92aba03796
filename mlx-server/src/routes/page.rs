//! The page at `/` for browsers, and a text for Ollama's clients, which check there whether a server runs. Invariant: the content security policy
//! allows only the page's own style and script, by their hashes, and forbids assigning text as markup (trusted types). So no text of a model can
//! run as code.

use std::sync::LazyLock;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::state::AppState;

const PAGE: &str = include_str!("../../page/index.html");

/// The content security policy of the page.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; connect-src 'self'; style-src '{}'; script-src '{}'; img-src data:; base-uri 'none'; \
         frame-ancestors 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        hash_of("style"),
        hash_of("script")
    )
});

/// Returns the hash of the content of this element of the page.
fn hash_of(element: &str) -> String {
    let (start, end) = (format!("<{element}>"), format!("</{element}>"));
    let inside = PAGE.split_once(&start).and_then(|(_, rest)| rest.split_once(&end)).map_or("", |it| it.0);
    format!("sha256-{}", STANDARD.encode(Sha256::digest(inside)))
}

/// The text that Ollama's clients expect.
const RUNNING: &str = "Ollama is running";

/// Returns true for a request for the page or the text. Neither needs a key, since they contain no data of this server.
pub(crate) fn wants_page(request: &Request) -> bool {
    request.uri().path() == "/" && [Method::GET, Method::HEAD].contains(request.method())
}

fn takes_html(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT).iter().any(|it| it.to_str().is_ok_and(|it| it.contains("text/html")))
}

/// Returns the page to browsers, and the text to other clients. With `--no-page`, all clients get the text.
pub(crate) async fn page(State(state): State<AppState>, request: Request) -> Response {
    if state.config.network.no_page || !takes_html(request.headers()) {
        return ([(CONTENT_TYPE, "text/plain; charset=utf-8"), (VARY, "accept")], RUNNING).into_response();
    }
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-cache"),
        (VARY, "accept"),
    ];
    (headers, PAGE).into_response()
}
