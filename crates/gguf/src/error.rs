//! Errors of GGUF files.

use std::path::{Path, PathBuf};

/// The result of an operation on a GGUF file.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A GGUF file that cannot be read or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The content of a file cannot be used.
    #[error("{}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The key or tensor and the problem with it.
        message: String,
    },
}

impl Error {
    /// Returns an [`Error::Io`] for `path`.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    /// Returns an [`Error::File`] for `path`.
    pub fn file(path: impl AsRef<Path>, message: impl Into<String>) -> Self {
        Self::File { path: path.as_ref().to_path_buf(), message: message.into() }
    }
}
