//! The lines of a batch: requests in the input, and their entries in the results.

use mlx_json::{Map, Value};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::fields::Fields;

/// The maximum length of a custom id in bytes.
const MAX_ID_LEN: usize = 512;
/// The field of the endpoints with the priority.
const PRIORITY: &str = "priority";

/// The request of a line.
#[derive(Debug, PartialEq)]
pub(super) struct LineRequest {
    pub(super) custom_id: String,
    /// The body for the endpoint.
    pub(super) body: Vec<u8>,
}

/// A line of a result file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) id: String,
    /// The number of the line in the input file, from 1.
    pub(super) line: u64,
    pub(super) custom_id: Option<String>,
    pub(super) response: Option<LineResponse>,
    pub(super) error: Option<LineError>,
}

/// The response of an endpoint to a line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LineResponse {
    pub(super) status_code: u16,
    pub(super) request_id: String,
    /// The unused fields of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ignored_fields: Option<String>,
    pub(super) body: Box<RawValue>,
}

/// The reason that a line has no response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LineError {
    pub(super) code: String,
    pub(super) message: String,
}

impl Entry {
    /// Returns true if the line was answered.
    pub(super) fn is_answer(&self) -> bool {
        self.response.as_ref().is_some_and(|response| response.status_code < 300)
    }
}

impl LineError {
    /// Returns an error that names the line.
    pub(super) fn new(line: u64, code: &str, message: &str) -> Self {
        Self { code: code.to_owned(), message: format!("line {line}: {message}") }
    }
}

/// Reads a line. Also returns its custom id, even if the remainder is invalid.
pub(super) fn read(text: &[u8], endpoint: &str) -> (Option<String>, Result<LineRequest, ApiError>) {
    let mut fields = match Fields::parse(text) {
        Ok(fields) => fields,
        Err(error) => {
            let message = error.message().replacen("the body", "the line", 1);
            return (None, Err(ApiError::body(message)));
        }
    };
    let custom_id = fields.peek("custom_id").and_then(Value::as_str).map(str::to_owned);
    (custom_id, request(&mut fields, endpoint))
}

fn request(fields: &mut Fields, endpoint: &str) -> Result<LineRequest, ApiError> {
    let custom_id: Option<String> = fields.take("custom_id")?;
    let custom_id =
        custom_id.ok_or_else(|| ApiError::field("custom_id", "is missing; give each line its own"))?;
    if custom_id.is_empty() || custom_id.len() > MAX_ID_LEN {
        let message = format!("has {} bytes; give 1 to {MAX_ID_LEN}", custom_id.len());
        return Err(ApiError::field("custom_id", message));
    }
    let method: Option<String> = fields.take("method")?;
    if method.as_deref() != Some("POST") {
        return Err(ApiError::field("method", "must be POST"));
    }
    let url: Option<String> = fields.take("url")?;
    if url.as_deref() != Some(endpoint) {
        return Err(ApiError::field("url", format!("must be the endpoint of the batch, {endpoint}")));
    }
    let body: Option<Map<String, Value>> = fields.take("body")?;
    let body = body.ok_or_else(|| ApiError::field("body", "is missing; give the request as an object"))?;
    let body = to_low_priority(body, endpoint)?;
    std::mem::take(fields).end()?;
    // Serializing a parsed value cannot fail.
    Ok(LineRequest { custom_id, body: serde_json::to_vec(&body).unwrap_or_default() })
}

/// Sets the fields of a body that differ in a batch.
fn to_low_priority(mut body: Map<String, Value>, endpoint: &str) -> Result<Map<String, Value>, ApiError> {
    let given = body.get(PRIORITY).filter(|value| !value.is_null());
    if given.is_some_and(|value| value.as_str() != Some("low")) {
        return Err(ApiError::unsupported("body.priority", "must be low in a batch; leave it out"));
    }
    body.insert(PRIORITY.to_owned(), "low".into());
    if body.get("stream").is_some_and(|value| value.as_bool() == Some(true)) {
        return Err(ApiError::unsupported("body.stream", "must be false in a batch; leave it out"));
    }
    let mut tools = body.get("tools").and_then(Value::as_array).into_iter().flatten();
    if tools.any(|tool| tool["type"] == "mcp") {
        // The permission to run tools is checked per HTTP request, and a line has none.
        return Err(ApiError::unsupported("body.tools", "have the type mcp, which does not run in a batch"));
    }
    if endpoint == "/v1/responses" && body.get("store").is_none_or(Value::is_null) {
        // The results contain the responses; thousands of them would evict those of chats.
        body.insert("store".to_owned(), Value::Bool(false));
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CHAT: &str = "/v1/chat/completions";

    fn line(more: &serde_json::Value) -> Vec<u8> {
        let mut line =
            json!({"custom_id": "a", "method": "POST", "url": CHAT, "body": {"n": 1.50, "seed": 7}});
        line.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        line.to_string().into_bytes()
    }

    #[test]
    fn a_line_becomes_a_request_of_low_priority() {
        let text =
            br#"{"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"x": 1.50, "y": {}}}"#;
        let (id, request) = read(text, "/v1/responses");
        let body = r#"{"x":1.50,"y":{},"priority":"low","store":false}"#;
        assert_eq!(id.as_deref(), Some("a"));
        assert_eq!(String::from_utf8(request.expect("valid").body).expect("text"), body);
    }

    #[test]
    fn mistakes_of_a_line_are_named() {
        for (more, field) in [
            (json!({"custom_id": null}), "custom_id"),
            (json!({"custom_id": 5}), "custom_id"),
            (json!({"custom_id": "x".repeat(513)}), "custom_id"),
            (json!({"method": "GET"}), "method"),
            (json!({"url": "/v1/models"}), "url"),
            (json!({"body": null}), "body"),
            (json!({"body": [1]}), "body"),
            (json!({"body": {"priority": "high"}}), "body.priority"),
            (json!({"body": {"stream": true}}), "body.stream"),
            (json!({"body": {"tools": [{"type": "mcp", "server_label": "a"}]}}), "body.tools"),
            (json!({"frobnicate": 1}), "frobnicate"),
        ] {
            let (_, request) = read(&line(&more), CHAT);
            assert_eq!(request.expect_err(field).param(), Some(field), "{more}");
        }
        let (id, request) = read(&line(&json!({"method": 7})), CHAT);
        assert!(id.as_deref() == Some("a") && request.is_err(), "the id is known");
        let twice = br#"{"custom_id": "a", "custom_id": "a"}"#;
        for text in [&b"{\"custom_id\": \"a\""[..], b"\xff", b"[]", twice] {
            let error = read(text, CHAT).1.expect_err("invalid");
            assert!(error.message().starts_with("the line is not"), "{}", error.message());
        }
    }
}
