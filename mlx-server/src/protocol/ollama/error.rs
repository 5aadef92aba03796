//! Errors of Ollama's API.

use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::ApiError;

/// Where the core's names of fields stand in a request.
const NAMES: [(&str, &str); 10] = [
    ("temperature", "options.temperature"),
    ("top_k", "options.top_k"),
    ("top_p", "options.top_p"),
    ("min_p", "options.min_p"),
    ("typical_p", "options.typical_p"),
    ("repetition_penalty", "options.repeat_penalty"),
    ("penalty_last_n", "options.repeat_last_n"),
    ("frequency_penalty", "options.frequency_penalty"),
    ("presence_penalty", "options.presence_penalty"),
    ("stop", "options.stop"),
];

/// A response that is an error.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaError {
    /// What is wrong and what would fix it.
    error: String,
}

/// The status and the body of a response that is an error.
pub(crate) fn write(error: &ApiError, _request_id: &str) -> (StatusCode, Vec<u8>) {
    let named = NAMES.iter().fold(error.clone(), |error, (core, public)| error.renamed(core, public));
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
