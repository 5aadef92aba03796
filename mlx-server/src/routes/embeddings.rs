//! `POST /v1/embeddings`.

use axum::extract::{Request, State};
use axum::response::Response;

use super::body::read;
use super::response::computed;
use crate::embed;
use crate::error::{ApiError, ErrorResponse};
use crate::models::Purpose;
use crate::protocol::openai::embedding::{EmbeddingList, EmbeddingRequest};
use crate::request_log::RequestNotes;
use crate::state::AppState;

/// Computes embeddings of texts.
#[utoipa::path(
    post, path = "/v1/embeddings", tag = "generation",
    request_body = EmbeddingRequest,
    responses(
        (status = 200, body = EmbeddingList),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(crate) async fn embed(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let notes = RequestNotes::from_request(&request);
    let (request, guard) = read(&state, request, EmbeddingRequest::read).await?;
    notes.set_user(request.user.as_deref());
    embed::check_amount(&state, &request)?;
    let lease = state.models.lease_for(Purpose::Embed, request.model.as_deref()).await?;
    let (encoding, shared, origin) = (request.encoding, state.clone(), guard.origin.clone());
    let embeddings =
        guard.run(move |cancel| embed::start(&shared, &lease, &request, &origin, cancel)).await?;
    drop(guard);
    let (level, truncated) = (embeddings.exactness, embeddings.truncated);
    Ok(computed(embeddings.list(encoding).await?, level, truncated))
}
