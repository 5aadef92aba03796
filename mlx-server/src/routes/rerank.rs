//! `POST /v1/rerank`, which has the paths of other servers, too.

use axum::extract::{Request, State};
use axum::response::Response;

use super::body::read;
use super::response::computed;
use crate::error::{ApiError, ErrorResponse};
use crate::models::Purpose;
use crate::protocol::rerank::{RerankRequest, RerankResponse};
use crate::request_log::RequestNotes;
use crate::rerank as ranking;
use crate::state::AppState;

/// Ranks documents by their relevance to a query.
#[utoipa::path(
    post, path = "/v1/rerank", tag = "generation",
    request_body = RerankRequest,
    responses(
        (status = 200, body = RerankResponse),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(crate) async fn rerank(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let notes = RequestNotes::from_request(&request);
    let (request, guard) = read(&state, request, RerankRequest::read).await?;
    notes.set_user(request.user.as_deref());
    ranking::check_amount(&state, &request)?;
    let lease = state.models.lease_for(Purpose::Rerank, request.model.as_deref()).await?;
    let (shared, origin) = (state.clone(), guard.origin.clone());
    let (running, request) = guard
        .run(move |cancel| Ok((ranking::start(&shared, &lease, &request, &origin, cancel)?, request)))
        .await?;
    drop(guard);
    let (level, truncated, field) = (running.exactness, running.truncated, request.documents_field);
    Ok(computed(RerankResponse::new(running.list(request).await?, field), level, truncated))
}
