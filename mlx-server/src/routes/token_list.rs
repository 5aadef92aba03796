//! Token lists as JSON, serialized while the client reads them, since a list may be ten times as large as its text.

use std::iter::once;

use axum::response::Response;
use chat_format::text::Tokenizer;
use serde_json::json;

use super::response::{chunked_json, json_body, to_json};
use crate::request_guard::RequestGuard;

/// The number of tokens per chunk.
const CHUNK_LEN: usize = 1 << 10;

/// Returns a JSON object that starts with `opening` and continues with `tokens` and `count`. With a tokenizer, each token has its text, or its
/// bytes if they are not whole characters.
pub(super) fn token_list(
    opening: Vec<u8>,
    ids: Vec<u32>,
    pieces: Option<Tokenizer>,
    guard: RequestGuard,
) -> Response {
    let count = ids.len();
    let begin = [opening, b"\"tokens\":[".to_vec()].concat();
    let end = format!("],\"count\":{count}}}").into_bytes();
    let chunk = move |start: usize| {
        let mut chunk = Vec::new();
        for (index, id) in (start..).zip(&ids[start..count.min(start + CHUNK_LEN)]) {
            if index > 0 {
                chunk.push(b',');
            }
            match &pieces {
                None => chunk.extend_from_slice(id.to_string().as_bytes()),
                Some(tokenizer) => chunk.extend(token_with_text(tokenizer, *id)),
            }
        }
        chunk
    };
    let chunks = (0..count).step_by(CHUNK_LEN).map(chunk);
    let all = once(begin).chain(chunks).chain(once(end));
    if count > CHUNK_LEN { chunked_json(all, guard) } else { json_body(all.collect::<Vec<_>>().concat()) }
}

fn token_with_text(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    to_json(&match std::str::from_utf8(&bytes) {
        Ok(text) => json!({ "id": id, "piece": text }),
        Err(_) => json!({ "id": id, "piece": bytes }),
    })
}
