//! API errors: OpenAI's format, a status, and the name of the invalid field.

use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use mlx_core::Error;
use mlx_options::ByteSize;
use serde::Serialize;
use utoipa::ToSchema;

/// The maximum length of a message in bytes. Messages may quote the request.
const MAX_MESSAGE_LEN: usize = 500;

/// The code of a cancellation.
const CANCELLED: &str = "cancelled";

/// The reason that a request was rejected or failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    status: StatusCode,
    /// The error code.
    code: &'static str,
    /// The invalid field.
    field: Option<String>,
    /// The cause and the fix. If `field` is set, the message continues a sentence about the field.
    message: String,
    retry_after: Option<u64>,
    /// For a prompt that is too long: its number of tokens, or a lower bound of it, and the limit.
    context_overflow: Option<(usize, usize)>,
}

/// The object in the `error` field of a response.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// The cause and the fix.
    pub(crate) message: String,
    /// `invalid_request_error`, `rate_limit_error` or `server_error`.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// The invalid field.
    pub(crate) param: Option<String>,
    /// The error code.
    pub(crate) code: Option<&'static str>,
}

/// An error response.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct ErrorResponse {
    /// The error.
    pub(crate) error: ErrorBody,
}

impl ApiError {
    /// Returns an error with this status and code.
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, field: None, message: message.into(), retry_after: None, context_overflow: None }
    }

    /// Returns the error for a request with an invalid `field`.
    pub(crate) fn field(field: impl Into<String>, message: impl AsRef<str>) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, "invalid_value", message.as_ref());
        Self { field: Some(field.into()), ..error }
    }

    /// Returns the error for a request that uses an unsupported feature.
    pub(crate) fn unsupported(field: impl Into<String>, message: impl AsRef<str>) -> Self {
        Self { code: "unsupported_value", ..Self::field(field, message) }
    }

    /// Returns the error for a request with an unreadable body.
    pub(crate) fn body(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_body", message)
    }

    /// Returns the error for an unknown model.
    pub(crate) fn no_model(name: &str, known: &[&str]) -> Self {
        let message = format!("{name:?} does not exist; there are: {}", known.join(", "));
        let error = Self::new(StatusCode::NOT_FOUND, "model_not_found", message);
        Self { field: Some("model".into()), ..error }
    }

    /// Returns the error for a profile whose model is not on this machine.
    pub(crate) fn no_model_of_profile(profile: &str, model: &str) -> Self {
        let model = model.rsplit('/').next().unwrap_or(model);
        let message =
            format!("the model {model:?} of the profile {profile:?} is not on the server's machine");
        let error = Self::new(StatusCode::NOT_FOUND, "model_not_found", message);
        Self { field: Some("model".into()), ..error }
    }

    /// Returns the error for a response that is not stored or belongs to another client.
    pub(crate) fn no_response(id: &str) -> Self {
        let message = format!("no stored response {id:?}; it may have been deleted or evicted");
        Self::new(StatusCode::NOT_FOUND, "response_not_found", message)
    }

    /// Returns the same error with this field.
    #[must_use]
    pub(crate) fn with_field(self, field: &str) -> Self {
        Self { field: Some(field.to_owned()), ..self }
    }

    /// Returns the error for a body of more than `limit` bytes.
    pub(crate) fn body_too_large(limit: ByteSize, flag: &str) -> Self {
        Self::too_large(format!("the body is larger than the {limit} that {flag} allows"))
    }

    /// Returns the error for a request that exceeds a size limit.
    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    }

    /// Returns the error for a connection beyond `--max-connections`.
    pub(crate) fn too_many_connections() -> Self {
        let message = "the server has reached --max-connections; close some connections or try again";
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", message);
        Self { retry_after: Some(1), ..error }
    }

    /// Returns the error for a server that is shutting down.
    pub(crate) fn shutting_down() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", "the server is shutting down")
    }

    /// Returns the error for a generation that its client cancelled.
    pub(crate) fn cancelled() -> Self {
        Self::new(StatusCode::CONFLICT, CANCELLED, "the response was cancelled")
    }

    /// Returns the error for a computation that failed after it started.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "generation_failed", message)
    }

    /// Returns the error for lack of capacity. The client may retry after this many seconds.
    pub(crate) fn busy(message: impl Into<String>, seconds: u64) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "busy", message);
        Self { retry_after: Some(seconds.max(1)), ..error }
    }

    /// Returns the error for a client that has reached its own limit until this time has passed.
    pub(crate) fn limited(message: impl Into<String>, wait: std::time::Duration) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message);
        Self { retry_after: Some(wait.as_secs_f64().ceil().max(1.0) as u64), ..error }
    }

    /// Returns true if the same request may succeed later.
    pub(crate) fn may_be_repeated(&self) -> bool {
        self.retry_after.is_some()
    }

    /// Replaces the core's name of a field with the endpoint's name.
    #[must_use]
    pub(crate) fn rename_field(mut self, core: &str, public: &str) -> Self {
        if self.field.as_deref() == Some(core) {
            self.field = Some(public.to_owned());
        }
        self
    }

    /// Replaces the core's field names with those of a chat. `limit` is the request's name of the token limit.
    #[must_use]
    pub(crate) fn with_chat_fields(self, limit: &str) -> Self {
        self.rename_field("prompt", "messages")
            .rename_field("logprobs", "top_logprobs")
            .rename_field("max_tokens", limit)
    }

    /// The status of the response.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// The error code.
    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    /// Returns true if the client cancelled the request.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.code == CANCELLED
    }

    /// For a prompt that is too long, returns its number of tokens, or a lower bound of it, and the limit.
    pub(crate) fn context_overflow(&self) -> Option<(usize, usize)> {
        self.context_overflow
    }

    /// Returns the message with the field's name.
    pub(crate) fn message(&self) -> String {
        shortened(match &self.field {
            Some(field) => format!("{field}: {}", self.message),
            None => self.message.clone(),
        })
    }

    /// Returns the body of the response.
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
    /// Returns the invalid field.
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
            // The reason was logged when the model was loaded.
            Error::Vision(_) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "vision_unavailable",
                "the model cannot take images now; see the server's log",
            ),
            Error::Hearing(_) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "audio_unavailable",
                "the model cannot take audio now; see the server's log",
            ),
            // The template and the tokenizer loaded, so this conversation or text is at fault.
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
        // Endpoints with another error format read the error from the extensions.
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
        let unavailable = ApiError::from(Error::Distributed("rank 1 is away".into())).into_response();
        assert_eq!(
            (unavailable.status().as_u16(), &unavailable.headers()[RETRY_AFTER]),
            (503, &HeaderValue::from(1))
        );
        let no_vision = ApiError::from(Error::Vision("/models/x: is damaged".into()));
        assert_eq!(no_vision.status().as_u16(), 503);
        assert!(!no_vision.response().error.message.contains("/models"));
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
