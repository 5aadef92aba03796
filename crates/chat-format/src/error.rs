//! Errors of messages, templates and tokenizers.

use std::path::{Path, PathBuf};

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why text cannot become tokens, or messages a prompt.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the model cannot be read or used.
    #[error(transparent)]
    Files(#[from] mlx_files::Error),
    /// A field of a message or tool has an invalid value.
    #[error("{field}: {message}")]
    Request {
        /// The field, by its public name.
        field: &'static str,
        /// The value and the allowed values.
        message: String,
    },
    /// A chat template failed to parse or to render.
    #[error("chat template: {0}")]
    Template(String),
    /// Text could not be tokenized, or tokens could not be decoded.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The caller cancelled the request.
    #[error("the request was cancelled")]
    Cancelled,
}

impl From<chat_template::Error> for Error {
    fn from(error: chat_template::Error) -> Self {
        Self::Template(error.to_string())
    }
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        mlx_files::Error::io(path, source).into()
    }

    pub(crate) fn file(path: impl AsRef<Path>, message: impl Into<String>) -> Self {
        mlx_files::Error::file(path, message).into()
    }

    /// Returns an [`Error::Request`] about `field`.
    pub fn request(field: &'static str, message: impl Into<String>) -> Self {
        Self::Request { field, message: message.into() }
    }
}
