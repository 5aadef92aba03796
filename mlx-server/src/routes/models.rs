//! `GET /v1/models` and `GET /v1/models/NAME`.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;

use super::response::json;
use crate::error::{ApiError, ErrorResponse};
use crate::protocol::openai::models::{ModelList, ModelObject};
use crate::state::AppState;

/// Lists the models.
#[utoipa::path(get, path = "/v1/models", tag = "models", responses((status = 200, body = ModelList)))]
pub(crate) async fn list(State(state): State<AppState>) -> Response {
    let data = state.models.list();
    let id = |model: Option<&ModelObject>| model.map(|model| model.id.clone());
    let (first_id, last_id) = (id(data.first()), id(data.last()));
    json(ModelList { object: "list", data, has_more: false, first_id, last_id })
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
    state.models.object(&name).map(json)
}
