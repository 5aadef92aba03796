//! The endpoints. Invariant: an endpoint validates its request before it leases a model, so an invalid request loads
//! nothing.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod models;
pub(crate) mod operation;
pub(crate) mod text;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::future::try_join_all;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Choice, Piece};
use crate::prepare::Prepared;
use crate::request_log;
use crate::state::AppState;
use crate::stream;
use crate::wire::Json;

/// Bodies from this size on are parsed on a blocking thread.
const LARGE_BODY: usize = 64 << 10;

/// All endpoints.
pub(crate) fn router(state: AppState) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/chat/render", post(chat::render))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/embeddings", post(embeddings::embed))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::one))
        .route("/tokenize", post(text::tokenize))
        .route("/detokenize", post(text::detokenize))
        .route("/health", get(operation::health))
        .route("/ready", get(operation::ready))
        .route("/metrics", get(operation::metrics))
        .route("/openapi.json", get(operation::openapi))
        .fallback(no_path)
        .method_not_allowed_fallback(no_method)
        .with_state(state)
}

async fn no_path(request: Request) -> ApiError {
    let message = format!("no endpoint at {}; /openapi.json lists the endpoints", request.uri().path());
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

async fn no_method(request: Request) -> ApiError {
    let message = format!("{} does not support {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

/// Reads and parses the body of a request.
async fn read<T: Send + 'static>(
    state: &AppState,
    request: Request,
    read: fn(Fields) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let limits = &state.config.limits;
    let limit = usize::try_from(limits.max_body.0).unwrap_or(usize::MAX);
    let body = Limited::new(request.into_body(), limit).collect();
    let body = match tokio::time::timeout(limits.body_timeout.duration(), body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.downcast_ref::<LengthLimitError>().is_some() => {
            let message = format!("the body is larger than {}", limits.max_body);
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message));
        }
        Ok(Err(error)) => return Err(ApiError::body(format!("reading the body failed: {error}"))),
        Err(_) => {
            let message = "the body did not arrive in time";
            return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message));
        }
    };
    if body.len() < LARGE_BODY {
        return Fields::parse(&body).and_then(read);
    }
    blocking(state, move || Fields::parse(&body).and_then(read)).await
}

/// Runs long computations on a blocking thread once a permit is free. A client that disconnects earlier gives up its
/// place in the queue.
async fn blocking<T: Send + 'static>(
    state: &AppState,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let permit = Arc::clone(&state.permits).acquire_owned().await;
    let work = move || {
        // The permit is held until the work ends, even if the client has disconnected.
        let _permit = permit;
        work()
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // The panic has been logged already.
        Err(_) => Err(ApiError::failed("internal error while preparing the request; see the server's log")),
    }
}

/// The response to a request whose generations are running.
async fn answer(state: &AppState, prepared: Prepared) -> Result<Response, ApiError> {
    let Prepared { choices, writer, stream, exactness: about, dropped } = prepared;
    let seed = writer.seed();
    let keep_alive = state.config.limits.keep_alive.duration();
    let (kind, body) = if let Some(options) = stream {
        ("text/event-stream", stream::body(choices, writer, options, keep_alive))
    } else {
        // In parallel: the first failure cancels the others.
        let pieces: Vec<Piece> = try_join_all(choices.into_iter().map(Choice::whole)).await?;
        ("application/json", writer.whole(pieces).into())
    };
    let mut response = exactness(body.into_response(), about);
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static(kind));
    headers.insert(request_log::SEED, HeaderValue::from(seed));
    if let Some(dropped) = dropped {
        headers.insert(request_log::DROPPED, HeaderValue::from(dropped));
    }
    if kind == "text/event-stream" {
        headers.insert("cache-control", HeaderValue::from_static("no-cache"));
        // Keeps nginx from buffering the events.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    }
    Ok(response)
}

/// Adds the level of exactness to a response.
fn exactness(mut response: Response, name: &'static str) -> Response {
    response.headers_mut().insert(request_log::EXACTNESS, HeaderValue::from_static(name));
    response
}

/// A response whose body is JSON.
fn json<T: serde::Serialize>(value: T) -> Response {
    Json(value).into_response()
}
