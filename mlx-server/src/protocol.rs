//! The protocols. Each module reads the requests and writes the answers of one API, and does nothing else.

pub(crate) mod content;
pub(crate) mod image;
pub(crate) mod input_audio;
pub(crate) mod mcp;
pub(crate) mod messages;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod tools;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use crate::error::ApiError;
use crate::request_log::{ANTHROPIC_REQUEST_ID, RequestId};

/// Rewrites errors from OpenAI's format to the format of the path's API. For Anthropic's API, adds the request id in its header.
pub(crate) async fn format_errors(request: Request, next: Next) -> Response {
    let (is_anthropic, write) = (is_anthropic(request.uri().path()), error_format(request.uri().path()));
    let id = RequestId::from_request(&request);
    let mut response = next.run(request).await;
    if let (true, Ok(id)) = (is_anthropic, HeaderValue::from_str(id.as_str())) {
        response.headers_mut().insert(ANTHROPIC_REQUEST_ID, id);
    }
    let Some((status, body)) =
        write.zip(response.extensions().get::<ApiError>()).map(|(write, error)| write(error, id.as_str()))
    else {
        return response;
    };
    let (mut parts, _) = response.into_parts();
    parts.status = status;
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(body))
}

type WriteError = fn(&ApiError, &str) -> (StatusCode, Vec<u8>);

/// Returns the error writer of a path, or `None` for OpenAI's format.
fn error_format(path: &str) -> Option<WriteError> {
    if is_anthropic(path) {
        Some(messages::error::write)
    } else if path == "/api" || path.starts_with("/api/") {
        Some(ollama::error::write)
    } else {
        None
    }
}

/// Returns true for a path of Anthropic's API.
fn is_anthropic(path: &str) -> bool {
    path == "/v1/messages" || path.starts_with("/v1/messages/")
}
