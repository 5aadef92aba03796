//! Errors in the format of Ollama's API.

use axum::http::StatusCode;
use mlx_core::sampling::PARAMETERS;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::ApiError;

/// An error response.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaError {
    /// The cause and the fix.
    pub(crate) error: String,
}

/// Returns the status and the body of an error response.
pub(crate) fn write(error: &ApiError, _request_id: &str) -> (StatusCode, Vec<u8>) {
    let stop = error.clone().rename_field("stop", "options.stop");
    let named = PARAMETERS.iter().fold(stop, |error, parameter| match parameter.ollama {
        Some(name) => error.rename_field(parameter.name, &format!("options.{name}")),
        None => error,
    });
    // Serializing a string cannot fail.
    (error.status(), serde_json::to_vec(&OllamaError { error: named.message() }).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_field_of_the_request() {
        let body =
            |field: &str| String::from_utf8(write(&ApiError::field(field, "is -1"), "").1).expect("text");
        assert_eq!(body("repetition_penalty"), r#"{"error":"options.repeat_penalty: is -1"}"#);
        assert_eq!(body("model"), r#"{"error":"model: is -1"}"#);
    }
}
