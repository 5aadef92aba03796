//! `GET /v1/models` and `GET /v1/models/NAME`.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;

use super::body::read;
use super::response::json;
use crate::error::{ApiError, ErrorResponse};
use crate::protocol::openai::models::{LoadRequest, ModelList, ModelObject, UnloadRequest};
use crate::state::AppState;

/// Lists the models.
#[utoipa::path(get, path = "/v1/models", tag = "models", responses((status = 200, body = ModelList)))]
pub(crate) async fn list(State(state): State<AppState>) -> Response {
    let data = state.models.list().await;
    let id = |model: Option<&ModelObject>| model.map(|model| model.id.clone());
    let (first_id, last_id) = (id(data.first()), id(data.last()));
    let allows_pull = state.allows_pull();
    json(ModelList { object: "list", data, has_more: false, first_id, last_id, allows_pull })
}

/// Describes one model.
#[utoipa::path(
    get, path = "/v1/models/{name}", tag = "models",
    params(("name" = String, Path, description = "The model's name or an alias.")),
    responses((status = 200, body = ModelObject), (status = "4XX", body = ErrorResponse))
)]
pub(crate) async fn one(
    State(state): State<AppState>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(name) = name.map_err(|error| ApiError::field("name", error.body_text()))?;
    state.models.object(&name).await.map(json)
}

/// Loads a model, and waits until it is in memory.
#[utoipa::path(
    post, path = "/v1/models/load", tag = "models",
    request_body = LoadRequest,
    responses((status = 200, body = ModelObject), (status = "4XX", body = ErrorResponse), (status = "5XX", body = ErrorResponse))
)]
pub(crate) async fn load(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let (LoadRequest { model, keep_alive, pin }, _guard) = read(&state, request, LoadRequest::read).await?;
    state.models.load_by_name(&model, keep_alive, pin).await.map(json)
}

/// Unloads a model. A model in use is unloaded after its last answer.
#[utoipa::path(
    post, path = "/v1/models/unload", tag = "models",
    request_body = UnloadRequest,
    responses((status = 200, body = ModelObject), (status = "4XX", body = ErrorResponse))
)]
pub(crate) async fn unload(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let (UnloadRequest(model), _guard) = read(&state, request, UnloadRequest::read).await?;
    state.models.unload_by_name(&model).await.map(json)
}
