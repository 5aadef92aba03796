//! `POST /tokenize` and `POST /detokenize`.

use axum::extract::{Request, State};
use axum::response::Response;
use chat_format::text::{EncodeLimit, Encoded};

use super::body::read;
use super::response::{chunked_json, to_json};
use super::token_list::token_list;
use crate::error::{ApiError, ErrorResponse};
use crate::protocol::openai::text::{
    DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse,
};
use crate::state::AppState;

/// The number of tokens to decode between two checks for cancellation.
const TOKENS_AT_ONCE: usize = 4 << 10;

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
    let (request, mut guard) = read(&state, request, TokenizeRequest::read).await?;
    let lease = state.models.lease(request.model.as_deref()).await?;
    let tokenizer = lease.engine.folder().tokenizer.clone();
    let pieces = request.with_pieces.then(|| tokenizer.clone());
    let tokens = guard.run(move |cancel| {
        let limit = EncodeLimit { pause: &|| cancel.check(), ..EncodeLimit::NONE };
        let ids = tokenizer.encode_within(&request.content, request.add_special, &limit);
        ids.and_then(Encoded::whole).map_err(|error| ApiError::from(error).rename_field("prompt", "content"))
    });
    let tokens = tokens.await?;
    guard.set_bytes(size_of_val(tokens.as_slice()))?;
    Ok(token_list(b"{".to_vec(), tokens, pieces, guard))
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
    let (request, mut guard) = read(&state, request, DetokenizeRequest::read).await?;
    let lease = state.models.lease(request.model.as_deref()).await?;
    let longest = state.config.limits.max_body;
    let response = guard.run(move |cancel| {
        let last = lease.engine.spec().vocab_size;
        if let Some(id) = request.tokens.iter().find(|id| **id as usize >= last) {
            let message = format!("contains token id {id}, but the model's largest id is {}", last - 1);
            return Err(ApiError::field("tokens", message));
        }
        let mut detokenizer = lease.engine.folder().tokenizer.detokenizer(request.skip_special);
        let mut content = String::new();
        for tokens in request.tokens.chunks(TOKENS_AT_ONCE) {
            content.extend(tokens.iter().map(|id| detokenizer.push(*id)));
            cancel.check()?;
            if content.len() as u64 > longest.0 {
                let message = format!("decode to more than the {longest} that --max-body allows");
                return Err(ApiError::field("tokens", message));
            }
        }
        content.push_str(&detokenizer.finish());
        Ok(to_json(&DetokenizeResponse { content }))
    });
    let response = response.await?;
    guard.set_bytes(response.len())?;
    Ok(chunked_json(std::iter::once(response), guard))
}
