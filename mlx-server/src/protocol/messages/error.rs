//! Errors in the format of the Messages API.

use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::error::ApiError;

/// The status of an overloaded server. Clients retry.
const OVERLOADED: u16 = 529;

/// An error response.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MessagesError {
    /// Always `error`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The error.
    error: MessagesErrorBody,
    /// The id of the request, as in the header `x-request-id`.
    #[serde(skip_serializing_if = "str::is_empty")]
    request_id: String,
}

/// The error.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MessagesErrorBody {
    /// The error type, such as `invalid_request_error` or `overloaded_error`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The cause and the fix.
    message: String,
    /// Details for clients that can retry differently.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Value>,
}

/// The error code after which clients send whole conversations.
const THREADS_UNSUPPORTED: &str = "thread_unsupported_request";

/// Returns the error for a request that continues a conversation by its id and sends only the new messages.
pub(super) fn threads_unsupported() -> ApiError {
    let message = "the server does not store conversations; send all messages";
    ApiError::new(StatusCode::BAD_REQUEST, THREADS_UNSUPPORTED, message).with_field("thread")
}

/// Returns the status and the body of an error response.
pub(crate) fn write(error: &ApiError, request_id: &str) -> (StatusCode, Vec<u8>) {
    let status = match error.status() {
        StatusCode::SERVICE_UNAVAILABLE => StatusCode::from_u16(OVERLOADED).unwrap_or(error.status()),
        status => status,
    };
    // Serializing cannot fail for these types.
    (status, serde_json::to_vec(&body(error, status, request_id)).unwrap_or_default())
}

/// Returns the error that ends a stream.
pub(crate) fn of_stream(error: &ApiError) -> MessagesError {
    body(error, error.status(), "")
}

fn body(error: &ApiError, status: StatusCode, request_id: &str) -> MessagesError {
    let kind = match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        503 | OVERLOADED => "overloaded_error",
        _ => "api_error",
    };
    let message = match error.context_overflow() {
        // Clients parse the numbers from this text and shorten the conversation.
        Some((tokens, limit)) => format!("prompt is too long: {tokens} tokens > {limit} maximum"),
        None => error.message(),
    };
    let is_thread = error.code() == THREADS_UNSUPPORTED;
    let details = is_thread.then(|| json!({"error_code": THREADS_UNSUPPORTED, "unsupported": ["thread"]}));
    let error = MessagesErrorBody { kind, message, details };
    MessagesError { kind: "error", error, request_id: request_id.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlx_core::Error;

    #[test]
    fn clients_learn_that_they_must_send_whole_conversations() {
        let body: Value = serde_json::from_slice(&write(&threads_unsupported(), "").1).expect("json");
        assert_eq!(body["error"]["details"]["error_code"], "thread_unsupported_request");
        assert_eq!(body["error"]["details"]["unsupported"], json!(["thread"]));
    }

    #[test]
    fn errors_have_the_names_and_words_of_the_api() {
        for (error, status, kind) in [
            (ApiError::field("top_p", "is 2"), 400, "invalid_request_error"),
            (ApiError::no_model("a", &[]), 404, "not_found_error"),
            (ApiError::busy("full", 3), 429, "rate_limit_error"),
            (ApiError::failed("x"), 500, "api_error"),
            (Error::Internal("x".into()).into(), 500, "api_error"),
            (ApiError::shutting_down(), 529, "overloaded_error"),
            (Error::EngineStopped("x".into()).into(), 529, "overloaded_error"),
            (Error::context_length("messages", 9, 5, "have 9; 5 fit").into(), 400, "invalid_request_error"),
        ] {
            let (given, body) = write(&error, "req-1");
            let body: Value = serde_json::from_slice(&body).expect("json");
            assert_eq!((given.as_u16(), &body["error"]["type"]), (status, &json!(kind)), "{body}");
            assert_eq!((&body["type"], &body["request_id"]), (&json!("error"), &json!("req-1")));
            if error.context_overflow().is_some() {
                assert_eq!(body["error"]["message"], "prompt is too long: 9 tokens > 5 maximum");
            }
        }
    }
}
