//! Errors of the cache and of model names.

use std::path::{Path, PathBuf};

/// The result of an operation on the cache.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error about a model or the cache.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder cannot be read, written or used.
    #[error(transparent)]
    Files(#[from] mlx_files::Error),
    /// A model cannot be used.
    #[error("{name}: {message}")]
    Hub {
        /// `ORG/NAME`.
        name: String,
        /// The problem and its fix.
        message: String,
    },
    /// A model is not in the cache, or only partly.
    #[error("{name}: {message}")]
    NotDownloaded {
        /// `ORG/NAME`.
        name: String,
        /// The missing files or revision.
        message: String,
    },
    /// A name or revision has a form that the Hub does not allow.
    #[error("{name}: {message}")]
    Option {
        /// `model` or `revision`.
        name: &'static str,
        /// The value and the allowed values.
        message: String,
    },
    /// An environment variable is missing.
    #[error("{variable}: {message}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// The problem.
        message: String,
    },
}

impl Error {
    /// Returns an [`mlx_files::Error::Io`] for `path`.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        mlx_files::Error::io(path, source).into()
    }

    /// Returns an [`mlx_files::Error::File`] for `path`.
    pub fn file(path: impl AsRef<Path>, message: impl Into<String>) -> Self {
        mlx_files::Error::file(path, message).into()
    }

    /// Returns an error about a path that is not a model.
    pub fn not_a_model(path: &Path) -> Self {
        Self::file(
            path,
            "is not a model: neither a folder with config.json and weights, nor a GGUF file, nor the name of a model that `mlx list` shows",
        )
    }

    /// Returns an [`Error::Hub`] about the model of that name.
    pub fn hub(name: &(impl ToString + ?Sized), message: impl Into<String>) -> Self {
        Self::Hub { name: name.to_string(), message: message.into() }
    }

    /// Returns an [`Error::NotDownloaded`] about the model of that name.
    pub fn not_downloaded(name: &(impl ToString + ?Sized), message: impl Into<String>) -> Self {
        Self::NotDownloaded { name: name.to_string(), message: message.into() }
    }

    /// Returns an [`Error::Option`] about `name`.
    pub fn option(name: &'static str, message: impl Into<String>) -> Self {
        Self::Option { name, message: message.into() }
    }

    /// Returns an [`Error::Environment`] about `variable`.
    pub fn environment(variable: &'static str, message: impl Into<String>) -> Self {
        Self::Environment { variable, message: message.into() }
    }
}
