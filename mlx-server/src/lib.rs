//! The HTTP front end: turns requests of several APIs into engine requests. Invariant: only this crate knows HTTP.
//! `docs/http-api.md` documents the behavior that clients can rely on.
#![forbid(unsafe_code)]

mod answer;
pub mod args;
mod auth;
mod batches;
mod body_memory;
mod caller;
mod chat_request;
mod client;
pub mod config;
mod connection;
mod delta;
mod downloads;
mod embed;
mod error;
mod field_value;
mod fields;
mod file_watch;
mod files;
mod generation;
mod human_log;
mod ids;
mod image_urls;
mod json;
mod keys;
mod log_queue;
mod mcp;
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
mod tls;
mod traces;
mod transcribe;
mod work;

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::{from_fn, from_fn_with_state};
use chat_template::GUARDED_THREAD;
use mlx_core::backend::DEVICE;
use mlx_engine_process::Program;
use mlx_options::{allows_colors, describe, log_filter};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, CorsLayer};

use args::{LogFormat, ServeArgs};
use config::{Config, StartError};
use human_log::HumanLog;
pub use image_urls::AddressRule;
use log_queue::LogQueue;
pub use state::AppState;

/// Returns the service: the endpoints with all middleware. The last layer is the outermost one.
pub fn app(state: AppState) -> Router {
    let with = |state: &AppState| state.clone();
    routes::router(state.clone())
        // Readers of bodies have limits of their own.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(with(&state), auth::check_key))
        .layer(cors(&state.config.network.cors_origin))
        .layer(from_fn_with_state(with(&state), auth::check_sender))
        .layer(CatchPanicLayer::custom(request_log::panic_response))
        .layer(from_fn(protocol::format_errors))
        .layer(from_fn_with_state(state, request_log::observe))
}

/// Runs the engine of a server, which started this process.
///
/// # Errors
/// If no server has started this process.
pub fn run_engine(format: LogFormat) -> Result<(), StartError> {
    let _log = start_log(format, false)?;
    mlx_engine_process::run().map_err(|error| StartError::new("engine", error))
}

/// Returns the program that calls [`run_engine`].
fn engine_program(config: &Config, format: LogFormat) -> Result<Program, StartError> {
    let format = if logs_text(format) { "text" } else { "json" };
    let mut program = Program::this(&["engine", "--log", format])
        .map_err(|error| StartError::new("the path of this program", error))?;
    if let Some(device) = config.engine.device.device {
        program.environment.push((DEVICE.into(), device.to_string().into()));
    }
    Ok(program)
}

/// Runs the server until it ends. Returns the text to print instead, if the arguments ask for one. If it is `verbose`, the log has more lines.
pub fn run(mut config: Config, args: &ServeArgs, verbose: bool) -> Result<Option<String>, StartError> {
    if args.print_config {
        return Ok(Some(config.to_toml()));
    }
    let _log = start_log(args.log, verbose)?;
    config.engine.device.choose().map_err(|error| StartError(describe(&error)))?;
    config.check_prompt_cache()?;
    if !config.models.in_process {
        config.models.engine_program = Some(engine_program(&config, args.log)?);
    }
    let state = AppState::new(config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| StartError::new("the async runtime", error))?;
    let outcome = runtime.block_on(serve::serve(state));
    // There is no need to wait for a model that is still loading.
    runtime.shutdown_timeout(Duration::from_secs(2));
    outcome.map(|()| None)
}

/// Returns the CORS layer that lets pages of these origins read responses.
fn cors(origins: &[String]) -> CorsLayer {
    // All of them parse, since the settings were checked.
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

/// Returns true if the log has lines for humans.
fn logs_text(format: LogFormat) -> bool {
    format == LogFormat::Text || format == LogFormat::Auto && stderr().is_terminal()
}

/// Starts logging to stderr: short lines on a terminal, one JSON object per line elsewhere.
fn start_log(format: LogFormat, verbose: bool) -> Result<LogQueue, StartError> {
    // The errors of rmcp are part of this server's lines.
    let default = if verbose { "info,rmcp=off,mlx_server=debug" } else { "info,rmcp=off" };
    let filter = log_filter(default).map_err(StartError)?;
    let is_json = !logs_text(format);
    let queue = LogQueue::start(stderr(), is_json).map_err(|error| StartError::new("the log", error))?;
    let lines = queue.writer();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(move || lines.clone());
    if is_json {
        log.json().flatten_event(true).with_span_list(false).try_init().ok();
    } else {
        log.event_format(HumanLog::start(stderr().is_terminal() && allows_colors())).try_init().ok();
    }
    // A panic on a guarded thread becomes the error of its request. All other panics are logged here.
    std::panic::set_hook(Box::new(|panic| {
        if std::thread::current().name() != Some(GUARDED_THREAD) {
            tracing::error!(panic = %panic, "a thread panicked");
        }
    }));
    Ok(queue)
}
