//! Errors as clients see them: OpenAI's shape, a status, and the name of the field at fault.

use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use mlx_core::Error;
use mlx_options::ByteSize;
use serde::Serialize;
use utoipa::ToSchema;

/// The maximum length of a message, in bytes. It may quote the request.
const MAX_MESSAGE_LEN: usize = 500;

/// The name of a cancellation.
const CANCELLED: &str = "cancelled";

/// Why a request was refused or failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    status: StatusCode,
    /// A name for programs.
    code: &'static str,
    /// The field at fault, if there is one.
    field: Option<String>,
    /// What is wrong and what would fix it; a sentence about the field if there is one.
    message: String,
    retry_after: Option<u64>,
    /// The tokens of a prompt that is too long, or a lower bound of them, and the limit.
    context_overflow: Option<(usize, usize)>,
}

/// The object in the `error` field of a response.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// What is wrong and what would fix it.
    pub(crate) message: String,
    /// `invalid_request_error`, `rate_limit_error` or `server_error`.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// The field at fault.
    pub(crate) param: Option<String>,
    /// A name for programs.
    pub(crate) code: Option<&'static str>,
}

/// A response that is an error.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct ErrorResponse {
    /// What went wrong.
    pub(crate) error: ErrorBody,
}

impl ApiError {
    /// An error of any kind.
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, field: None, message: message.into(), retry_after: None, context_overflow: None }
    }

    /// A request that cannot be understood or run because of `field`.
    pub(crate) fn field(field: impl Into<String>, message: impl AsRef<str>) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, "invalid_value", message.as_ref());
        Self { field: Some(field.into()), ..error }
    }

    /// A request for something that this server does not support.
    pub(crate) fn unsupported(field: impl Into<String>, message: impl AsRef<str>) -> Self {
        Self { code: "unsupported_value", ..Self::field(field, message) }
    }

    /// A request whose body cannot be read.
    pub(crate) fn body(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_body", message)
    }

    /// A model that does not exist.
    pub(crate) fn no_model(name: &str, known: &[&str]) -> Self {
        let message = format!("{name:?} does not exist; there are: {}", known.join(", "));
        let error = Self::new(StatusCode::NOT_FOUND, "model_not_found", message);
        Self { field: Some("model".into()), ..error }
    }

    /// A response that is not stored, or is another client's.
    pub(crate) fn no_response(id: &str) -> Self {
        let message = format!("no stored response {id:?}; it may have been deleted or evicted");
        Self::new(StatusCode::NOT_FOUND, "response_not_found", message)
    }

    /// The same error about a field.
    #[must_use]
    pub(crate) fn at(self, field: &str) -> Self {
        Self { field: Some(field.to_owned()), ..self }
    }

    /// A body of more than `limit` bytes.
    pub(crate) fn body_too_large(limit: ByteSize) -> Self {
        Self::too_large(format!("the body is larger than --max-body, {limit}"))
    }

    /// A request that takes more bytes than any may.
    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    }

    /// More connections than the server takes.
    pub(crate) fn too_many_connections() -> Self {
        let message =
            "the server has as many connections as --max-connections allows; close some, or try again";
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", message);
        Self { retry_after: Some(1), ..error }
    }

    /// The server is shutting down.
    pub(crate) fn shutting_down() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", "the server is shutting down")
    }

    /// A generation that was cancelled by its client.
    pub(crate) fn cancelled() -> Self {
        Self::new(StatusCode::CONFLICT, CANCELLED, "the response was cancelled")
    }

    /// A computation that failed after it had begun.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "generation_failed", message)
    }

    /// No capacity now; the client may try again in so many seconds.
    pub(crate) fn busy(message: impl Into<String>, seconds: u64) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "busy", message);
        Self { retry_after: Some(seconds.max(1)), ..error }
    }

    /// The same error where the endpoint has a name of its own for a field of the core.
    #[must_use]
    pub(crate) fn renamed(mut self, core: &str, public: &str) -> Self {
        if self.field.as_deref() == Some(core) {
            self.field = Some(public.to_owned());
        }
        self
    }

    /// The same error with the names of a chat's fields; `limit` is the one of two names that the request has for its limit of tokens.
    #[must_use]
    pub(crate) fn in_chat(self, limit: &str) -> Self {
        self.renamed("prompt", "messages").renamed("logprobs", "top_logprobs").renamed("max_tokens", limit)
    }

    /// The status of the response.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// The name for programs.
    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    /// Whether the client cancelled it.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.code == CANCELLED
    }

    /// Returns the tokens of a prompt that is too long, or a lower bound of them, and the limit.
    pub(crate) fn context_overflow(&self) -> Option<(usize, usize)> {
        self.context_overflow
    }

    /// What is wrong, with the field's name.
    pub(crate) fn message(&self) -> String {
        shortened(match &self.field {
            Some(field) => format!("{field}: {}", self.message),
            None => self.message.clone(),
        })
    }

    /// The body of the response.
    pub(crate) fn response(&self) -> ErrorResponse {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        };
        let (param, code) = (self.field.clone(), Some(self.code));
        ErrorResponse { error: ErrorBody { message: self.message(), kind, param, code } }
    }
}

#[cfg(test)]
impl ApiError {
    /// The field at fault.
    pub(crate) fn param(&self) -> Option<&str> {
        self.field.as_deref()
    }
}

impl From<chat_format::Error> for ApiError {
    fn from(error: chat_format::Error) -> Self {
        Error::from(error).into()
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        match error {
            Error::Request { field, message } => Self::field(field, message),
            Error::ContextLength { field, tokens, limit, message } => {
                let error = Self::field(field, message);
                Self { code: "context_length_exceeded", context_overflow: Some((tokens, limit)), ..error }
            }
            Error::Busy { retry_after, .. } => Self::busy(error.to_string(), retry_after),
            Error::EngineStopped(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "engine_stopped", error.to_string())
            }
            Error::Distributed(message) => {
                let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "worker_unavailable", message);
                Self { retry_after: Some(1), ..error }
            }
            // Logged with the reason when the model was loaded.
            Error::Vision(_) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "vision_unavailable",
                "the model cannot be given images now; see the server's log",
            ),
            // The template and the tokenizer were loaded: it is this conversation or text that they refuse.
            Error::Template(message) => Self::field("messages", message),
            Error::Tokenizer(message) => Self::field("prompt", message),
            error => Self::failed(error.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut headers = HeaderMap::new();
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let mut response = (self.status, headers, crate::json::Json(self.response())).into_response();
        // For paths whose API has another form of errors.
        response.extensions_mut().insert(self);
        response
    }
}

fn shortened(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_LEN {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_LEN));
        message.push('…');
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_core_have_their_status() {
        let error = ApiError::from(Error::request("top_p", "is 2"));
        assert_eq!((error.status().as_u16(), error.param()), (400, Some("top_p")));
        let busy = ApiError::from(Error::Busy { waiting: 9, retry_after: 3 }).into_response();
        assert_eq!((busy.status().as_u16(), &busy.headers()[RETRY_AFTER]), (429, &HeaderValue::from(3)));
        assert_eq!(ApiError::from(Error::EngineStopped("x".into())).status().as_u16(), 503);
        let away = ApiError::from(Error::Distributed("rank 1 is away".into())).into_response();
        assert_eq!((away.status().as_u16(), &away.headers()[RETRY_AFTER]), (503, &HeaderValue::from(1)));
        let blind = ApiError::from(Error::Vision("/models/x: is damaged".into()));
        assert_eq!(blind.status().as_u16(), 503);
        assert!(!blind.response().error.message.contains("/models"));
        assert_eq!(ApiError::from(Error::Mlx("x".into())).status().as_u16(), 500);
        let internal = ApiError::from(Error::Internal("x".into()));
        assert_eq!((internal.status().as_u16(), internal.response().error.kind), (500, "server_error"));
    }

    #[test]
    fn quoted_values_do_not_fill_a_message() {
        let error = ApiError::field("prompt", "é".repeat(10_000));
        assert!(error.response().error.message.len() < 520);
    }
}
