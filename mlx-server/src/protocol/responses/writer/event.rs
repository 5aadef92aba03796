//! The events of a streamed response.

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::super::object::Response;
use crate::delta::Progress;

/// The data of an event.
#[derive(Serialize)]
struct EventData<'a, T> {
    r#type: &'a str,
    sequence_number: u64,
    #[serde(flatten)]
    fields: &'a T,
}

/// The fields of an event with the progress of the prompt.
#[derive(Serialize)]
pub(super) struct ResponseProgress<'a> {
    pub(super) response: &'a Response,
    pub(super) prompt_progress: Progress,
}

/// The fields of an event that has the whole response.
#[derive(Serialize)]
pub(super) struct WholeResponse<'a> {
    pub(super) response: &'a Response,
}

/// Returns an event with its number.
pub(super) fn event_bytes(kind: &str, sequence: u64, fields: &impl Serialize) -> Bytes {
    // Serializing cannot fail for these types.
    let data = serde_json::to_string(&EventData { r#type: kind, sequence_number: sequence, fields });
    Bytes::from(format!("event: {kind}\nid: {sequence}\ndata: {}\n\n", data.unwrap_or_default()))
}

/// Returns a value as JSON.
pub(super) fn json<T: Serialize>(value: &T) -> Value {
    // Serializing cannot fail for these types.
    serde_json::to_value(value).unwrap_or_default()
}
