//! Errors as clients see them: OpenAI's shape, a status, and the name of the field that is to blame.

use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use mlx_core::Error;
use serde::Serialize;
use utoipa::ToSchema;

/// The longest message; what a client sent may be quoted in it.
const LONGEST_MESSAGE: usize = 500;

/// Why a request was refused or failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    status: StatusCode,
    body: ErrorBody,
    retry_after: Option<u64>,
}

/// The object in the `error` field of a response.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// What is wrong and what would help.
    pub(crate) message: String,
    /// Whose fault it is: `invalid_request_error`, `rate_limit_error` or `server_error`.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// The field that is to blame.
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
        let kind = match status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        };
        let body = ErrorBody { message: shortened(message.into()), kind, param: None, code: Some(code) };
        Self { status, body, retry_after: None }
    }

    /// A request that cannot be understood or done, because of `field`.
    pub(crate) fn field(field: impl Into<String>, message: impl AsRef<str>) -> Self {
        let field = field.into();
        let message = format!("{field}: {}", message.as_ref());
        let mut error = Self::new(StatusCode::BAD_REQUEST, "invalid_value", message);
        error.body.param = Some(field);
        error
    }

    /// A request with something in it that this server does not do.
    pub(crate) fn unsupported(field: impl Into<String>, message: impl AsRef<str>) -> Self {
        let mut error = Self::field(field, message);
        error.body.code = Some("unsupported_value");
        error
    }

    /// A request whose body is not what it has to be.
    pub(crate) fn body(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_body", message)
    }

    /// A model that is not there.
    pub(crate) fn no_model(name: &str, known: &[&str]) -> Self {
        let message = format!("the model {name:?} does not exist; there are: {}", known.join(", "));
        let mut error = Self::new(StatusCode::NOT_FOUND, "model_not_found", message);
        error.body.param = Some("model".into());
        error
    }

    /// The server ends.
    pub(crate) fn shutting_down() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", "the server is shutting down")
    }

    /// A computation that failed after it had begun.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "generation_failed", message)
    }

    /// There is no room now, but there will be.
    pub(crate) fn busy(message: impl Into<String>, seconds: u64) -> Self {
        let mut error = Self::new(StatusCode::TOO_MANY_REQUESTS, "busy", message);
        error.retry_after = Some(seconds.max(1));
        error
    }

    /// The same error, told of the field that the client knows.
    #[must_use]
    pub(crate) fn blaming(mut self, inner: &str, outer: &str) -> Self {
        if self.body.param.as_deref() == Some(inner) {
            self.body.param = Some(outer.to_owned());
            if let Some(rest) = self.body.message.strip_prefix(inner) {
                self.body.message = format!("{outer}{rest}");
            }
        }
        self
    }

    /// What the response says.
    pub(crate) fn response(&self) -> ErrorResponse {
        ErrorResponse { error: self.body.clone() }
    }
}

#[cfg(test)]
impl ApiError {
    /// The status of the response.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// The field that is to blame.
    pub(crate) fn param(&self) -> Option<&str> {
        self.body.param.as_deref()
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        match error {
            Error::Request { field, message } => Self::field(field, message),
            Error::Busy { retry_after, .. } => Self::busy(error.to_string(), retry_after),
            Error::EngineStopped(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "engine_stopped", error.to_string())
            }
            // The template and the tokenizer are fine by themselves: it is this conversation that they refuse.
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
        (self.status, headers, crate::wire::Json(self.response())).into_response()
    }
}

fn shortened(mut message: String) -> String {
    if message.len() > LONGEST_MESSAGE {
        message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
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
        assert_eq!(ApiError::from(Error::Mlx("x".into())).status().as_u16(), 500);
    }

    #[test]
    fn quoted_values_do_not_fill_a_message() {
        let error = ApiError::field("prompt", "é".repeat(10_000));
        assert!(error.response().error.message.len() < 520);
    }
}
