//! `POST /v1/completions`.

use axum::extract::{Request, State};
use axum::response::Response;

use super::body::read;
use super::response::answer;
use crate::error::{ApiError, ErrorResponse};
use crate::models::Purpose;
use crate::prepare;
use crate::protocol::openai::answer::{Answer, CompletionChoice, StreamEvent};
use crate::protocol::openai::completion::CompletionRequest;
use crate::protocol::openai::writer::{Endpoint, Writer};
use crate::request_log::RequestNotes;
use crate::state::AppState;

/// Completes texts, as one response or as server-sent events.
#[utoipa::path(
    post, path = "/v1/completions", tag = "generation",
    request_body = CompletionRequest,
    responses(
        (status = 200, content((Answer<CompletionChoice> = "application/json"), (StreamEvent = "text/event-stream"))),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(crate) async fn complete(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let notes = RequestNotes::from_request(&request);
    let (mut request, guard) = read(&state, request, CompletionRequest::read).await?;
    request.spec.set_origin(&guard.origin);
    let output = request.output;
    notes.set_user(request.spec.user.as_deref());
    prepare::check_amount(&state, request.prompts.len(), request.spec.choices)?;
    let lease = state.models.lease_for(Purpose::Generate, request.spec.model.as_deref()).await?;
    let shared = state.clone();
    let prepared = guard.run(move |cancel| prepare::completion(&shared, &lease, &request, cancel)).await?;
    drop(guard);
    answer(&state, prepared, |meta| Writer::new(Endpoint::Completion, output, meta)).await
}
