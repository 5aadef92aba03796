//! Endpoints for operators: health, readiness and metrics.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use mlx_core::Error;
use mlx_core::engine::Outage;
use serde::Serialize;
use utoipa::ToSchema;

use super::extract::Sender;
use super::response::json;
use crate::error::{ApiError, ErrorResponse};
use crate::json::Json;
use crate::keys::KeyUsage;
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
        Some(Outage::Machine(message)) => Error::Distributed(message).into(),
        Some(Outage::Process(death)) => {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "engine_restarting", death)
        }
        None => not_ready,
    })
}

/// Returns metrics in Prometheus' text format.
#[utoipa::path(
    get, path = "/metrics", tag = "operation",
    responses((status = 200, body = String, content_type = "text/plain"))
)]
pub(crate) async fn metrics(State(state): State<AppState>) -> Response {
    let spans = state.traces.as_ref().map(|traces| (traces.counts().sent(), traces.counts().dropped()));
    let page = state.metrics.page(&state.models.stats(), spans);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

/// The use of API keys.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UsageList {
    /// Always `list`.
    object: &'static str,
    /// The keys: that of the request, or all named ones for a request with another key.
    data: Vec<KeyUsage>,
}

/// Returns the use of the request's named API key since the server started. A request with another key, or without keys, gets all.
#[utoipa::path(get, path = "/v1/usage", tag = "operation", responses((status = 200, body = UsageList)))]
pub(crate) async fn usage(State(state): State<AppState>, Sender(client): Sender) -> Response {
    json(UsageList { object: "list", data: state.keys.usage(client) })
}
