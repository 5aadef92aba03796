//! The requests and the responses of `/v1/batches`.

use mlx_json::{Map, Value};
use serde::{Deserialize, Serialize};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{IntoParams, PartialSchema, ToSchema};

use super::schema::merged;
use crate::batches::{BatchRecord, Status, Usage, WINDOW};
use crate::error::ApiError;
use crate::fields::{Fields, field_group};

/// The paths that the lines of a batch can call.
const ENDPOINTS: [&str; 4] = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"];
/// The maximum number of entries of `metadata`, and the maximum lengths of their keys and values in characters.
const MAX_METADATA: (usize, usize, usize) = (16, 64, 512);

field_group! {
    /// A batch to run.
    pub(crate) struct BatchFields {
        /// The id of the uploaded file with a request in each line.
        #[schema(example = "file-1")]
        pub(crate) input_file_id: String,
        /// The path that all lines call: `/v1/chat/completions`, `/v1/completions`, `/v1/embeddings` or `/v1/responses`.
        #[schema(example = "/v1/completions")]
        pub(crate) endpoint: String,
        /// `24h`.
        #[schema(pattern = "^24h$", example = "24h")]
        pub(crate) completion_window: String,
        /// Up to 16 texts by name. The batch repeats them.
        #[schema(value_type = Object, example = json!({"topic": "tides"}))]
        pub(crate) metadata: Map<String, Value>,
    }
}

/// A parsed request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BatchRequest {
    /// The id of the input file.
    pub(crate) input: String,
    pub(crate) endpoint: String,
    pub(crate) metadata: Option<Map<String, Value>>,
}

impl BatchRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let given = BatchFields::read(fields)?;
        fields.reject(&[("output_expires_after", "files stay until they are deleted")])?;
        let missing = |field: &str, what: &str| ApiError::field(field, format!("is missing; give {what}"));
        let input =
            given.input_file_id.ok_or_else(|| missing("input_file_id", "the id of an uploaded file"))?;
        let endpoint = given.endpoint.filter(|endpoint| ENDPOINTS.contains(&endpoint.as_str()));
        let endpoint = endpoint
            .ok_or_else(|| ApiError::field("endpoint", format!("must be one of {}", ENDPOINTS.join(", "))))?;
        if given.completion_window.as_deref() != Some(WINDOW.0) {
            return Err(ApiError::field("completion_window", format!("must be {}", WINDOW.0)));
        }
        check_metadata(given.metadata.as_ref())?;
        Ok(Self { input, endpoint, metadata: given.metadata })
    }
}

fn check_metadata(metadata: Option<&Map<String, Value>>) -> Result<(), ApiError> {
    let (entries, key_len, value_len) = MAX_METADATA;
    let metadata = metadata.into_iter().flatten();
    let fits = |(key, value): (&String, &Value)| {
        key.chars().count() <= key_len && value.as_str().is_some_and(|text| text.chars().count() <= value_len)
    };
    if metadata.clone().count() > entries || !metadata.clone().all(fits) {
        let message = format!(
            "must have at most {entries} texts, with names of at most {key_len} and values of at most {value_len} characters"
        );
        return Err(ApiError::field("metadata", message));
    }
    Ok(())
}

impl PartialSchema for BatchRequest {
    fn schema() -> RefOr<Schema> {
        merged([BatchFields::schema()], &[]).build(&["input_file_id", "endpoint", "completion_window"])
    }
}

impl ToSchema for BatchRequest {}

/// A batch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchObject {
    /// The id of the batch.
    id: String,
    /// Always `batch`.
    object: &'static str,
    /// The path that all lines call.
    endpoint: String,
    /// The reason that the whole batch failed.
    errors: Option<BatchErrors>,
    /// The id of the file with the requests.
    input_file_id: String,
    /// Always `24h`.
    completion_window: &'static str,
    /// `validating`, `in_progress`, `finalizing`, `completed`, `failed`, `expired`, `cancelling` or `cancelled`.
    status: &'static str,
    /// The id of the file with the answers, once the batch has ended. Null if there is none.
    output_file_id: Option<String>,
    /// The id of the file with the errors, once the batch has ended. Null if there is none.
    error_file_id: Option<String>,
    /// The time of the request, in seconds since 1970.
    created_at: u64,
    /// The time at which the first line could run.
    in_progress_at: Option<u64>,
    /// The time at which remaining lines expire.
    expires_at: u64,
    /// The time at which all lines had a result.
    finalizing_at: Option<u64>,
    /// The time of the status `completed`.
    completed_at: Option<u64>,
    /// The time of the status `failed`.
    failed_at: Option<u64>,
    /// The time of the status `expired`.
    expired_at: Option<u64>,
    /// The time at which the client cancelled the batch.
    cancelling_at: Option<u64>,
    /// The time of the status `cancelled`.
    cancelled_at: Option<u64>,
    /// The number of lines, and of their results so far.
    request_counts: RequestCounts,
    /// The tokens of the answers so far.
    usage: Usage,
    /// The metadata of the request.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
}

/// The number of lines and results of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RequestCounts {
    /// All lines; 0 until they are counted.
    total: u64,
    /// Lines that were answered.
    completed: u64,
    /// Lines with an error.
    failed: u64,
}

/// The errors of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchErrors {
    /// Always `list`.
    object: &'static str,
    /// The errors.
    data: Vec<BatchError>,
}

/// The reason that a batch failed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchError {
    /// The error code.
    code: String,
    /// The cause and the fix.
    message: String,
    /// Always null: errors of a line are in the error file.
    line: Option<u64>,
    /// Always null.
    param: Option<String>,
}

impl BatchObject {
    /// Returns the description of a batch.
    pub(crate) fn new(record: BatchRecord) -> Self {
        let time = |status| record.time_of(status);
        let [answers, errors] =
            [0, 1].map(|index| record.has_results[index].then(|| record.results[index].clone()));
        Self {
            object: "batch",
            errors: record.failure.as_ref().map(|failure| BatchErrors {
                object: "list",
                data: vec![BatchError {
                    code: failure.code.clone(),
                    message: failure.message.clone(),
                    line: None,
                    param: None,
                }],
            }),
            completion_window: WINDOW.0,
            status: record.status.name(),
            output_file_id: answers,
            error_file_id: errors,
            created_at: record.created,
            in_progress_at: time(Status::InProgress),
            expires_at: record.expires,
            finalizing_at: time(Status::Finalizing),
            completed_at: time(Status::Completed),
            failed_at: time(Status::Failed),
            expired_at: time(Status::Expired),
            cancelling_at: time(Status::Cancelling),
            cancelled_at: time(Status::Cancelled),
            request_counts: RequestCounts {
                total: record.total,
                completed: record.counts.completed,
                failed: record.counts.failed,
            },
            usage: record.usage,
            id: record.id,
            endpoint: record.endpoint,
            input_file_id: record.input,
            metadata: record.metadata,
        }
    }

    /// Returns the id of the batch.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }
}

/// Options for listing batches.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchesQuery {
    /// Maximum number of batches, from 1 to 100; the default is 20.
    pub(crate) limit: Option<usize>,
    /// List only batches after the one with this id. The newest batch is first.
    pub(crate) after: Option<String>,
}

/// A page of batches.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchList {
    /// Always `list`.
    pub(crate) object: &'static str,
    /// The batches.
    pub(crate) data: Vec<BatchObject>,
    /// The id of the first batch.
    pub(crate) first_id: Option<String>,
    /// The id of the last batch.
    pub(crate) last_id: Option<String>,
    /// True if there are more batches.
    pub(crate) has_more: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_is_bounded() {
        let read = |metadata: serde_json::Value| {
            let body = json!({"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h",
                "metadata": metadata});
            BatchRequest::read(&mut Fields::parse(body.to_string().as_bytes()).expect("an object"))
        };
        let entries = |count: usize| (0..count).map(|index| (index.to_string(), json!("x"))).collect();
        assert!(
            read(json!({"a": "b".repeat(512)})).is_ok()
                && read(serde_json::Value::Object(entries(16))).is_ok()
        );
        for wrong in [
            json!({"a": "b".repeat(513)}),
            json!({"a".repeat(65): "b"}),
            json!({"a": 1}),
            serde_json::Value::Object(entries(17)),
        ] {
            assert_eq!(read(wrong).expect_err("too large").param(), Some("metadata"));
        }
    }
}
