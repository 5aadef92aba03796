//! `POST /tokenize` and `POST /detokenize`.

use axum::extract::{Request, State};
use axum::response::Response;
use mlx_core::text::Tokenizer;
use serde_json::{Value, json};

use super::body::{blocking, read};
use super::response::json as respond;
use crate::error::{ApiError, ErrorResponse};
use crate::state::AppState;
use crate::wire::text::{DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse};

/// Tokenizes a text.
#[utoipa::path(
    post, path = "/tokenize", tag = "text",
    request_body = TokenizeRequest,
    responses(
        (status = 200, body = TokenizeResponse),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(crate) async fn tokenize(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let request = read(&state, request, TokenizeRequest::read).await?;
    let lease = state.models.lease(request.model.as_deref()).await?;
    let response = blocking(&state, move || {
        let tokenizer = &lease.engine.folder().tokenizer;
        let ids = tokenizer
            .encode(&request.content, request.add_special)
            .map_err(|error| ApiError::from(error).renamed("prompt", "content"))?;
        let show = |id: &u32| if request.with_pieces { with_piece(tokenizer, *id) } else { json!(id) };
        Ok(TokenizeResponse { tokens: ids.iter().map(show).collect(), count: ids.len() })
    });
    Ok(respond(response.await?))
}

/// Decodes tokens to a text.
#[utoipa::path(
    post, path = "/detokenize", tag = "text",
    request_body = DetokenizeRequest,
    responses(
        (status = 200, body = DetokenizeResponse),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(crate) async fn detokenize(
    State(state): State<AppState>,
    request: Request,
) -> Result<Response, ApiError> {
    let request = read(&state, request, DetokenizeRequest::read).await?;
    let lease = state.models.lease(request.model.as_deref()).await?;
    let response = blocking(&state, move || {
        let folder = lease.engine.folder();
        let last = lease.engine.spec().vocab_size;
        if let Some(id) = request.tokens.iter().find(|id| **id as usize >= last) {
            let message = format!("contains token id {id}, but the model's largest id is {}", last - 1);
            return Err(ApiError::field("tokens", message));
        }
        Ok(DetokenizeResponse { content: folder.tokenizer.decode(&request.tokens, request.skip_special) })
    });
    Ok(respond(response.await?))
}

fn with_piece(tokenizer: &Tokenizer, id: u32) -> Value {
    let bytes = tokenizer.token_bytes(id);
    match std::str::from_utf8(&bytes) {
        Ok(text) => json!({ "id": id, "piece": text }),
        Err(_) => json!({ "id": id, "piece": bytes }),
    }
}
