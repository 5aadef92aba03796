//! The settings of stored responses.

use std::path::PathBuf;

use mlx_options::{ByteSize, Seconds};
use serde::{Deserialize, Serialize};

use super::StartError;
use crate::responses::journal::Journal;

/// See [`crate::args::ResponseArgs`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ResponseConfig {
    /// Memory for stored responses.
    pub responses_store: ByteSize,
    /// The time that a streamed response continues without a reader.
    pub resume_window: Seconds,
    /// The folder of the journal.
    pub journal: Option<PathBuf>,
    /// The maximum size of the finished responses in the journal.
    pub journal_size: ByteSize,
}

impl Default for ResponseConfig {
    fn default() -> Self {
        Self {
            responses_store: ByteSize(64 << 20),
            resume_window: Seconds(30.0),
            journal: None,
            journal_size: ByteSize(256 << 20),
        }
    }
}

impl ResponseConfig {
    /// Opens the journal, if one is configured.
    pub(crate) fn open_journal(&self) -> Result<Option<Journal>, StartError> {
        let Some(folder) = &self.journal else { return Ok(None) };
        let journal = Journal::open(folder, self.journal_size);
        journal.map(Some).map_err(|error| StartError::new("--journal", error))
    }
}
