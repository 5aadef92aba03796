//! Errors of Ollama's API.

use axum::http::StatusCode;
use serde_json::json;

use crate::error::ApiError;

/// The status and the body of a response that is an error.
pub(crate) fn write(error: &ApiError, _request_id: &str) -> (StatusCode, Vec<u8>) {
    (error.status(), json!({"error": error.message()}).to_string().into_bytes())
}
