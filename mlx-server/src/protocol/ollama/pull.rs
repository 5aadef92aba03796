//! `POST /api/pull`: the request, and the lines about a download.

use mlx_hub::{HubName, model_for_ollama};
use serde::Serialize;
use serde_json::json;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::downloads::DownloadEvent;
use crate::error::ApiError;
use crate::fields::{Fields, field_group};
use crate::protocol::openai::schema::{Fixed, merged};

field_group! {
    /// The model to download.
    pub(crate) struct PullFields {
        /// The model's name on the Hugging Face Hub, as ORG/NAME, ORG/NAME@REVISION or, for a GGUF file, ORG/NAME:QUANTIZATION. A trailing `:latest`
        /// is ignored.
        #[schema(example = "mlx-community/Qwen3-0.6B-4bit")]
        pub(crate) model: String,
        /// Older name of `model`.
        #[schema(example = "mlx-community/Qwen3-0.6B-4bit")]
        pub(crate) name: String,
        /// True (the default) streams the progress as JSON lines.
        #[schema(example = false)]
        pub(crate) stream: bool,
    }
}

/// A parsed request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PullRequest {
    pub(crate) name: HubName,
    pub(crate) is_streamed: bool,
}

fn fixed_fields() -> [Fixed; 1] {
    [("insecure", vec![json!(false)], "the server's HF_ENDPOINT names the Hub")]
}

impl PullRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let given = PullFields::read(fields)?;
        for (field, allowed, reason) in fixed_fields() {
            fields.expect_one_of(field, &allowed, reason)?;
        }
        let name = given.model.or(given.name);
        let name = name.ok_or_else(|| ApiError::field("model", "is missing; give the name of a model"))?;
        let name = name.strip_suffix(":latest").unwrap_or(&name);
        // Names without an organization are mostly those of Ollama's library.
        if let Some(model) = model_for_ollama(name) {
            let message =
                format!("is {name:?}, but models are downloaded from the Hugging Face Hub; try {model}");
            return Err(ApiError::field("model", message));
        }
        let name = name.parse().map_err(|_| {
            ApiError::field(
                "model",
                format!("is {name:?}, which is not the name of a model on the Hub; use ORG/NAME or, for a GGUF file, ORG/NAME:QUANTIZATION"),
            )
        })?;
        Ok(Self { name, is_streamed: given.stream.unwrap_or(true) })
    }
}

impl PartialSchema for PullRequest {
    fn schema() -> RefOr<Schema> {
        merged([PullFields::schema()], &fixed_fields()).build(&[])
    }
}

impl ToSchema for PullRequest {}

/// A line about a download.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct PullStatus {
    /// `pulling manifest`, `pulling COMMIT`, an event such as a lost connection, or at the end `success`.
    pub(crate) status: String,
    /// The commit, as `sha1:COMMIT`. The bytes below are those of all its files.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// The size of all files in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    /// The bytes on disk, with those of earlier downloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
    /// With `success`: the name by which requests can use the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
}

impl PullStatus {
    /// Returns the first line.
    pub(crate) fn beginning() -> Self {
        Self::new("pulling manifest")
    }

    /// Returns the line of an event; an error for a download that failed.
    pub(crate) fn of(event: DownloadEvent) -> Result<Self, String> {
        Ok(match event {
            DownloadEvent::Bytes { commit, total, completed } => Self {
                digest: Some(format!("sha1:{commit}")),
                total: Some(total),
                completed: Some(completed),
                ..Self::new(format!("pulling {}", commit.get(..12).unwrap_or(&commit)))
            },
            DownloadEvent::Note(text) => Self::new(text),
            DownloadEvent::Complete(model) => Self { model: Some(model), ..Self::new("success") },
            DownloadEvent::Failed(reason) => return Err(reason),
        })
    }

    fn new(status: impl Into<String>) -> Self {
        Self { status: status.into(), digest: None, total: None, completed: None, model: None }
    }
}
