//! The settings of files and batches.

use std::path::PathBuf;

use mlx_options::ByteSize;
use serde::{Deserialize, Serialize};

/// See [`crate::args::FileArgs`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileConfig {
    /// The folder of files and batches. Without it, both are off.
    pub files_dir: Option<PathBuf>,
    /// The maximum size of all files together.
    pub files_size: ByteSize,
    /// The number of lines of batches that run at the same time.
    pub batch_lines: usize,
}

impl Default for FileConfig {
    fn default() -> Self {
        Self { files_dir: None, files_size: ByteSize(4 << 30), batch_lines: 4 }
    }
}
