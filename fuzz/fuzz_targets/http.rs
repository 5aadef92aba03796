//! Bodies of every POST route, through the whole app and a tiny model: success or a client error (4xx), never a server error.
#![no_main]

use std::sync::LazyLock;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use libfuzzer_sys::fuzz_target;
use mlx_fuzz::json::Documents;
use mlx_fuzz::{model, seeds, watch_panics};
use mlx_server::config::Config;
use mlx_server::{AppState, app};
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

/// The routes. The first byte of an input selects one by its letter.
const ROUTES: [(u8, &str); 6] = [
    (b'c', "/v1/chat/completions"),
    (b'r', "/v1/chat/render"),
    (b'p', "/v1/completions"),
    (b'e', "/v1/embeddings"),
    (b't', "/tokenize"),
    (b'd', "/detokenize"),
];

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));
static APP: LazyLock<Router> = LazyLock::new(|| {
    let mut config = Config::default();
    config.models.model = vec![format!("tiny={}", model("llama-f32").display())];
    // More choices would be slow and test nothing new.
    config.limits.max_choices = 3;
    config.limits.max_inputs = 8;
    app(AppState::new(config).expect("the settings are valid"))
});
// A seed is the letter of a route and a body.
static BODIES: LazyLock<Documents> =
    LazyLock::new(|| Documents::new(seeds("http").iter().map(|seed| seed[1..].to_vec())));

fuzz_target!(init: watch_panics(), |data: &[u8]| {
    let Some((letter, body)) = data.split_first() else { return };
    let named = ROUTES.iter().find(|(name, _)| name == letter);
    let (_, path) = named.unwrap_or(&ROUTES[usize::from(*letter) % ROUTES.len()]);
    let body = BODIES.text(body);
    let request = Request::post(*path).header("host", "localhost").body(Body::from(body)).expect("a request");
    let (status, body) = RUNTIME.block_on(async {
        let Ok(response) = APP.clone().oneshot(request).await;
        (response.status(), response.into_body().collect().await.expect("the body comes whole").to_bytes())
    });
    let text = String::from_utf8(body.to_vec()).expect("answers are text");
    assert!(!status.is_server_error() && !text.contains("\"server_error\""), "{path}: {status}: {text}");
    assert!(!text.starts_with("data: ") || text.ends_with("data: [DONE]\n\n"), "{path}: a stream without an end: {text}");
});
