//! `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use axum::extract::{Request, State};
use axum::response::Response;

use super::body::read;
use super::response::{answer, json};
use crate::error::ApiError;
use crate::models::Purpose;
use crate::prepare;
use crate::protocol::messages::answer::{MessageAnswer, MessagesEvent, TokenCount};
use crate::protocol::messages::error::MessagesError;
use crate::protocol::messages::request::{MessagesCountRequest, MessagesRequest};
use crate::protocol::messages::writer::Writer;
use crate::state::AppState;

/// Answers a conversation with Anthropic's Messages API, as one response or as server-sent events.
#[utoipa::path(
    post, path = "/v1/messages", tag = "generation",
    request_body = MessagesRequest,
    responses(
        (status = 200, content((MessageAnswer = "application/json"), (MessagesEvent = "text/event-stream"))),
        (status = "4XX", body = MessagesError),
        (status = "5XX", body = MessagesError),
    )
)]
pub(crate) async fn create(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let (request, guard) = read(&state, request, MessagesRequest::read).await?;
    let MessagesRequest { chat, display } = request;
    let prepared = prepare::start_chat(&state, chat, guard).await;
    let prepared = prepared.map_err(|error| error.rename_field("stop", "stop_sequences"))?;
    answer(&state, prepared, |meta| Writer::new(display, meta)).await
}

/// Counts the tokens of a conversation's prompt without generating.
#[utoipa::path(
    post, path = "/v1/messages/count_tokens", tag = "text",
    request_body = MessagesCountRequest,
    responses(
        (status = 200, body = TokenCount),
        (status = "4XX", body = MessagesError),
        (status = "5XX", body = MessagesError),
    )
)]
pub(crate) async fn count_tokens(
    State(state): State<AppState>,
    request: Request,
) -> Result<Response, ApiError> {
    let (request, guard) = read(&state, request, MessagesCountRequest::read).await?;
    let MessagesCountRequest { model, conversation } = request;
    let lease = state.models.lease_for(Purpose::Generate, model.as_deref()).await?;
    let input_tokens = guard.run(move |cancel| prepare::prompt_tokens(&lease, conversation, cancel)).await?;
    Ok(json(TokenCount { input_tokens }))
}
