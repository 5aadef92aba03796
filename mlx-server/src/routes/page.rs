//! The page at `/` for browsers, and a text for Ollama's clients, which check there whether a server runs. Invariant: the content security policy
//! allows only the page's own style and script, by their hashes, and forbids assigning text as markup (trusted types). So no text of a model can
//! run as code. The frame that reads PDF files runs without an origin and may not send requests.

use std::sync::LazyLock;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::error::ApiError;
use crate::state::AppState;

/// Joins files of the folder `page`.
macro_rules! joined {
    ($($name:literal)*) => { concat!($(include_str!(concat!("../../page/", $name))),*) };
}

const STYLE: &str = joined!(
    "styles/base.css" "styles/menu.css" "styles/conversation.css" "styles/markdown.css" "styles/tokens.css"
    "styles/phone.css"
);

const SCRIPT: &str = joined!(
    "scripts/dom.js" "vendor/temml/temml.min.js" "scripts/math.js" "scripts/languages.js" "scripts/highlight.js"
    "scripts/inline_markdown.js" "scripts/blocks.js" "scripts/block_nodes.js" "scripts/growing_markdown.js"
    "scripts/storage.js" "scripts/tabs.js" "scripts/presets.js" "scripts/conversation.js" "scripts/server.js"
    "scripts/chat_request.js" "scripts/models.js" "scripts/stream.js" "scripts/answer.js" "scripts/pull.js" "scripts/number_fields.js"
    "scripts/settings.js" "scripts/speech.js" "scripts/attachments.js" "scripts/pdf.js" "scripts/tokens.js" "scripts/tools.js" "scripts/calls.js"
    "scripts/message_buttons.js" "scripts/editor.js" "scripts/article.js" "scripts/draw.js"
    "scripts/conversation_list.js" "scripts/search.js" "scripts/metrics.js" "scripts/exchange.js"
    "scripts/markdown_export.js" "scripts/composer.js" "scripts/controls.js" "scripts/start.js"
);

const PDF_SCRIPT: &str = joined!("vendor/pdfjs-dist/pdf.js" "pdf_reader.js");

/// An HTML document and its content security policy.
struct Document {
    text: String,
    policy: String,
}

static PAGE: LazyLock<Document> = LazyLock::new(|| Document {
    text: filled(include_str!("../../page/page.html"), STYLE, SCRIPT),
    policy: format!(
        "default-src 'none'; connect-src 'self'; style-src '{}'; script-src '{}'; img-src data:; frame-src 'self'; \
         base-uri 'none'; frame-ancestors 'none'; form-action 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'",
        hash(STYLE),
        hash(SCRIPT)
    ),
});

/// The reader of PDF files. Its script is large, so the page loads it only for such a file.
static PDF_READER: LazyLock<Document> = LazyLock::new(|| Document {
    text: filled(include_str!("../../page/pdf_reader.html"), "", PDF_SCRIPT),
    policy: format!(
        "default-src 'none'; script-src '{}'; base-uri 'none'; frame-ancestors 'self'; form-action 'none'; \
         sandbox allow-scripts",
        hash(PDF_SCRIPT)
    ),
});

/// Inserts a style and a script into a document.
fn filled(document: &str, style: &str, script: &str) -> String {
    let styled = document.replacen("<style>STYLE", &format!("<style>{style}"), 1);
    styled.replacen("<script>SCRIPT", &format!("<script>{script}"), 1)
}

fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

/// The text that Ollama's clients expect.
const RUNNING: &str = "Ollama is running";

/// Returns true for a request for the page, its reader of PDF files or the text. They need no key, since they contain no data of this server.
pub(crate) fn wants_page(request: &Request) -> bool {
    ["/", "/pdf-reader"].contains(&request.uri().path())
        && [Method::GET, Method::HEAD].contains(request.method())
}

fn takes_html(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT).iter().any(|it| it.to_str().is_ok_and(|it| it.contains("text/html")))
}

/// Returns the page to browsers, and the text to other clients. With `--no-page`, all clients get the text.
pub(crate) async fn page(State(state): State<AppState>, request: Request) -> Response {
    if state.config.network.no_page || !takes_html(request.headers()) {
        return ([(CONTENT_TYPE, "text/plain; charset=utf-8"), (VARY, "accept")], RUNNING).into_response();
    }
    html(&PAGE)
}

/// Returns the reader of PDF files.
pub(crate) async fn pdf_reader(State(state): State<AppState>) -> Response {
    if state.config.network.no_page {
        let message = "--no-page turns the page and its reader of PDF files off";
        return ApiError::new(StatusCode::NOT_FOUND, "not_found", message).into_response();
    }
    html(&PDF_READER)
}

fn html(document: &'static Document) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, document.policy.as_str()),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-cache"),
        (VARY, "accept"),
    ];
    (headers, document.text.as_str()).into_response()
}
