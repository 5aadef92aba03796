//! The requests and the responses of `/v1/files`.

use serde::{Deserialize, Serialize};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{IntoParams, PartialSchema, ToSchema};

use super::page::Order;
use super::schema::merged;
use crate::error::ApiError;
use crate::fields::{Fields, field_group};
use crate::files::{FileRecord, INPUT};

/// The maximum length of a file name in bytes.
const MAX_NAME_LEN: usize = 512;

field_group! {
    /// A file to upload, as the parts of a form.
    pub(crate) struct FileFields {
        /// The file: one JSON object per line.
        #[schema(format = Binary, example = "requests.jsonl")]
        pub(crate) file: String,
        /// `batch`.
        #[schema(pattern = "^batch$", example = "batch")]
        pub(crate) purpose: String,
    }
}

/// A parsed upload: the name of the file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FileUpload(pub(crate) String);

impl FileUpload {
    /// Parses the parts of a form, in which the file is represented by its name.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let FileFields { file, purpose } = FileFields::read(fields)?;
        let reason = "files stay until they are deleted";
        fields.reject(
            &["expires_after", "expires_after[anchor]", "expires_after[seconds]"].map(|it| (it, reason)),
        )?;
        match purpose.as_deref() {
            Some(INPUT) => {}
            Some(_) => {
                return Err(ApiError::unsupported(
                    "purpose",
                    "must be batch; other purposes are not supported",
                ));
            }
            None => return Err(ApiError::field("purpose", "is missing; give batch")),
        }
        let name = file.ok_or_else(|| ApiError::field("file", "is missing; give a file"))?;
        if name.len() > MAX_NAME_LEN {
            let message = format!("has a name of {} bytes; at most {MAX_NAME_LEN} are allowed", name.len());
            return Err(ApiError::field("file", message));
        }
        Ok(Self(name))
    }
}

impl PartialSchema for FileUpload {
    fn schema() -> RefOr<Schema> {
        merged([FileFields::schema()], &[]).build(&["file", "purpose"])
    }
}

impl ToSchema for FileUpload {}

/// A file.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileObject {
    /// The id of the file.
    id: String,
    /// Always `file`.
    object: &'static str,
    /// The size in bytes.
    bytes: u64,
    /// The time of the upload, in seconds since 1970.
    created_at: u64,
    /// The name that the client gave.
    filename: String,
    /// `batch`, or `batch_output` for the results of a batch.
    purpose: String,
    /// Always `processed`.
    status: &'static str,
}

impl FileObject {
    /// Returns the description of a file.
    pub(crate) fn new(record: &FileRecord) -> Self {
        Self {
            id: record.id.clone(),
            object: "file",
            bytes: record.bytes,
            created_at: record.created,
            filename: record.name.clone(),
            purpose: record.purpose.clone(),
            status: "processed",
        }
    }

    /// Returns the id of the file.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }
}

/// Options for listing files.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct FilesQuery {
    /// Maximum number of files, from 1 to 10 000, which is the default.
    pub(crate) limit: Option<usize>,
    /// `desc` (the default) lists the newest file first; `asc` the oldest.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    pub(crate) order: Order,
    /// List only files after the one with this id.
    pub(crate) after: Option<String>,
    /// List only files with this purpose.
    pub(crate) purpose: Option<String>,
}

/// A page of files.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileList {
    /// Always `list`.
    pub(crate) object: &'static str,
    /// The files.
    pub(crate) data: Vec<FileObject>,
    /// The id of the first file.
    pub(crate) first_id: Option<String>,
    /// The id of the last file.
    pub(crate) last_id: Option<String>,
    /// True if there are more files.
    pub(crate) has_more: bool,
}

/// The result of a deletion.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileDeletion {
    /// The id of the deleted file.
    pub(crate) id: String,
    /// Always `file`.
    pub(crate) object: &'static str,
    /// Always true.
    pub(crate) deleted: bool,
}
