//! Errors of Ollama's API.

use axum::http::StatusCode;
use mlx_core::sampling::PARAMETERS;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::ApiError;

/// A response that is an error.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaError {
    /// What is wrong and what would fix it.
    error: String,
}

/// The status and the body of a response that is an error.
pub(crate) fn write(error: &ApiError, _request_id: &str) -> (StatusCode, Vec<u8>) {
    let stop = error.clone().renamed("stop", "options.stop");
    let named = PARAMETERS.iter().fold(stop, |error, parameter| match parameter.ollama {
        Some(name) => error.renamed(parameter.name, &format!("options.{name}")),
        None => error,
    });
    // A text always has a form in JSON.
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
