//! Endpoints for operators: health, readiness and metrics.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use mlx_core::Error;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::{ApiError, ErrorResponse};
use crate::json::Json;
use crate::state::AppState;

/// The status of the server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Status {
    /// Always `ok`.
    pub(crate) status: &'static str,
}

/// Reports that the server is alive.
#[utoipa::path(get, path = "/health", tag = "operation", responses((status = 200, body = Status)))]
pub(crate) async fn health() -> Json<Status> {
    Json(Status { status: "ok" })
}

/// Reports whether the server accepts requests. It does not while it preloads models or shuts down, after an engine has
/// failed, while its process is started again, and while a worker of a divided model is unavailable.
#[utoipa::path(
    get, path = "/ready", tag = "operation",
    responses((status = 200, body = Status), (status = 503, body = ErrorResponse))
)]
pub(crate) async fn ready(State(state): State<AppState>) -> Result<Json<Status>, ApiError> {
    if state.is_ready() {
        return Ok(Json(Status { status: "ok" }));
    }
    let message = "the server is starting or shutting down, or an engine has failed";
    let not_ready = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", message);
    Err(match state.models.outage() {
        Some(outage) if state.models.is_distributed() => Error::Distributed(outage).into(),
        Some(death) => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "engine_restarting", death),
        None => not_ready,
    })
}

/// Returns metrics in Prometheus' text format.
#[utoipa::path(
    get, path = "/metrics", tag = "operation",
    responses((status = 200, body = String, content_type = "text/plain"))
)]
pub(crate) async fn metrics(State(state): State<AppState>) -> Response {
    let page = state.metrics.page(&state.models.stats());
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}
