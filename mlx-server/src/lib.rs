//! The HTTP front end: OpenAI-style requests become engine requests. Invariant: only this crate knows HTTP.
//! `docs/http-api.md` says what clients may rely on.
#![forbid(unsafe_code)]

mod answer;
pub mod args;
mod auth;
mod body_memory;
mod chat_request;
mod client;
pub mod config;
mod connection;
mod delta;
mod embed;
mod error;
mod field_value;
mod fields;
mod generation;
mod human_log;
mod ids;
mod image_urls;
mod json;
mod log_writer;
mod metrics;
mod models;
mod open_files;
pub mod openapi;
mod prepare;
mod protocol;
mod request_guard;
mod request_log;
mod rerank;
mod responses;
mod routes;
mod serve;
mod signals;
mod state;
mod stream;
#[cfg(test)]
mod tests;
mod time;
mod work;

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use axum::Router;
use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use chat_template::GUARDED_THREAD;
use mlx_options::{describe, log_filter};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, CorsLayer};

use args::{LogForm, ServeArgs};
use config::{Config, StartError};
use error::ApiError;
use human_log::HumanLog;
pub use image_urls::AddressRule;
use log_writer::LogWriter;
pub use state::AppState;

/// Everything between a connection and the endpoints: the outermost layer stands last.
pub fn app(state: AppState) -> Router {
    let with = |state: &AppState| state.clone();
    routes::router(state.clone())
        .layer(from_fn_with_state(with(&state), check_length))
        .layer(from_fn_with_state(with(&state), auth::check_key))
        .layer(cors(&state.config.network.cors_origin))
        .layer(from_fn_with_state(with(&state), auth::check_sender))
        .layer(CatchPanicLayer::custom(request_log::panicked))
        .layer(from_fn(protocol::shape_errors))
        .layer(from_fn_with_state(state, request_log::observe))
}

/// Refuses a body that is announced as too large before the client sends it.
async fn check_length(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let limit = state.config.limits.max_body;
    if request.body().size_hint().lower() > limit.0 {
        return ApiError::body_too_large(limit).into_response();
    }
    next.run(request).await
}

/// What the settings, and flags that are no settings, ask for: a text to print, or else a server that has run to its end.
pub fn run(config: Config, args: &ServeArgs) -> Result<Option<String>, StartError> {
    if args.print_config {
        return Ok(Some(config.to_toml()));
    }
    start_log(args.log)?;
    config.engine.device.choose().map_err(|error| StartError(describe(&error)))?;
    config.check_prompt_cache()?;
    let state = AppState::new(config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| StartError::about("the async runtime", error))?;
    let outcome = runtime.block_on(serve::serve(state));
    // A model that is being loaded need not be waited for.
    runtime.shutdown_timeout(Duration::from_secs(2));
    outcome.map(|()| None)
}

/// Pages of the listed origins may ask; for all others a browser keeps the answer to itself.
fn cors(origins: &[String]) -> CorsLayer {
    // All of them parse: the settings were checked.
    let origins: Vec<HeaderValue> = origins.iter().filter_map(|origin| origin.parse().ok()).collect();
    if origins.is_empty() {
        return CorsLayer::new();
    }
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(request_log::HEADERS.map(HeaderName::from_static))
}

/// Lines on standard error: short ones on a terminal, and one JSON object each elsewhere.
fn start_log(form: LogForm) -> Result<(), StartError> {
    let filter = log_filter("info").map_err(StartError)?;
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    if form == LogForm::Text || form == LogForm::Auto && stderr().is_terminal() {
        log.event_format(HumanLog).with_writer(stderr).try_init().ok();
    } else {
        log.json().flatten_event(true).with_writer(|| LogWriter).try_init().ok();
    }
    // A panic on a guarded thread becomes the error of its request; every other panic is logged here.
    std::panic::set_hook(Box::new(|panic| {
        if std::thread::current().name() != Some(GUARDED_THREAD) {
            tracing::error!(panic = %panic, "a thread panicked");
        }
    }));
    Ok(())
}
