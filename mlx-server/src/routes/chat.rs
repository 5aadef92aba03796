//! `POST /v1/chat/completions` and `POST /v1/chat/render`.

use axum::extract::{Request, State};
use axum::response::Response;

use super::body::read;
use super::response::{answer, to_json};
use super::token_list::token_list;
use crate::error::{ApiError, ErrorResponse};
use crate::models::Purpose;
use crate::prepare;
use crate::protocol::openai::answer::{Answer, ChatChoice, StreamEvent};
use crate::protocol::openai::chat::{ChatCompletionRequest, RenderRequest};
use crate::protocol::openai::text::RenderResponse;
use crate::protocol::openai::writer::{Endpoint, Writer};
use crate::request_log::RequestNotes;
use crate::state::AppState;

/// Completes a chat, as one response or as server-sent events.
#[utoipa::path(
    post, path = "/v1/chat/completions", tag = "generation",
    request_body = ChatCompletionRequest,
    responses(
        (status = 200, content((Answer<ChatChoice> = "application/json"), (StreamEvent = "text/event-stream"))),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(crate) async fn complete(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let notes = RequestNotes::from_request(&request);
    let (ChatCompletionRequest { chat, output }, guard) =
        read(&state, request, ChatCompletionRequest::read).await?;
    notes.set_user(chat.spec.user.as_deref());
    let prepared = prepare::start_chat(&state, chat, guard).await?;
    answer(&state, prepared, |meta| Writer::new(Endpoint::Chat, output, meta)).await
}

/// Renders the prompt of a chat without generating.
#[utoipa::path(
    post, path = "/v1/chat/render", tag = "text",
    request_body = RenderRequest,
    responses(
        (status = 200, body = RenderResponse),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(crate) async fn render(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let (request, mut guard) = read(&state, request, RenderRequest::read).await?;
    let RenderRequest { chat: ChatCompletionRequest { chat, .. }, generation_prompt } = request;
    let lease = state.models.lease_for(Purpose::Generate, chat.spec.model.as_deref()).await?;
    let rendered = guard.run(move |cancel| {
        let prompt = prepare::render(&lease, chat, generation_prompt, cancel)?;
        let opening = [b"{\"prompt\":".to_vec(), to_json(&prompt.text), b",".to_vec()].concat();
        Ok((opening, prompt.tokens))
    });
    let (opening, tokens) = rendered.await?;
    guard.set_bytes(opening.len() + size_of_val(tokens.as_slice()))?;
    Ok(token_list(opening, tokens, None, guard))
}
