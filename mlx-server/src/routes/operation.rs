//! What those who run the server ask: is it alive, is it ready, what does it do, what can it do.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::{ApiError, ErrorResponse};
use crate::openapi;
use crate::state::AppState;
use crate::wire::Json;

/// A word on how the server is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Status {
    /// Always `ok`.
    pub(crate) status: &'static str,
}

/// Says that the server lives.
#[utoipa::path(get, path = "/health", tag = "operation", responses((status = 200, body = Status)))]
pub(crate) async fn health() -> Json<Status> {
    Json(Status { status: "ok" })
}

/// Says whether requests are welcome: not while models are loaded at the start, not when the server ends, not
/// while an engine is dead.
#[utoipa::path(
    get, path = "/ready", tag = "operation",
    responses((status = 200, body = Status), (status = 503, body = ErrorResponse))
)]
pub(crate) async fn ready(State(state): State<AppState>) -> Result<Json<Status>, ApiError> {
    if state.is_ready() {
        return Ok(Json(Status { status: "ok" }));
    }
    let message = "the server is starting, ending, or has lost an engine";
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", message))
}

/// Gives figures in Prometheus' text format.
#[utoipa::path(
    get, path = "/metrics", tag = "operation",
    responses((status = 200, body = String, content_type = "text/plain"))
)]
pub(crate) async fn metrics(State(state): State<AppState>) -> Response {
    let page = state.metrics.page(&state.models.figures());
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

/// Gives this document.
#[utoipa::path(get, path = "/openapi.json", tag = "operation", responses((status = 200, body = Object)))]
pub(crate) async fn openapi() -> Response {
    Json(openapi::document()).into_response()
}
