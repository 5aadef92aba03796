//! Errors of files, which the readers of a model's other files share.

use std::path::{Path, PathBuf};

/// The longest message in characters. Longer ones lose their middle.
const LONGEST_MESSAGE: usize = 600;

/// The result of an operation on a file.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A file that cannot be read, written or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The content of a file or folder cannot be used.
    #[error("{}: {message}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The key or tensor, and the problem with its value.
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
        Self::File { path: path.as_ref().to_path_buf(), message: legible(&message.into()) }
    }
}

/// Returns a message of one line. Keys and names of a damaged file can be long, and contain anything.
fn legible(message: &str) -> String {
    let message = message.replace(char::is_control, "\u{fffd}");
    let length = message.chars().count();
    if length <= LONGEST_MESSAGE {
        return message;
    }
    let part = LONGEST_MESSAGE / 2;
    let start: String = message.chars().take(part).collect();
    let end: String = message.chars().skip(length - part).collect();
    format!("{start} … {end}")
}
