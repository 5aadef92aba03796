//! The one error type of the crate: what went wrong, where, and what would fix it.

use std::path::{Path, PathBuf};

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something failed. Messages are lower-case sentences that name the file, field or flag.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file of a model folder says something that cannot be used.
    #[error("{}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The key in it and what is wrong with it.
        message: String,
    },
    /// A model of the hub cannot be had.
    #[error("{name}: {message}")]
    Hub {
        /// The model, by its name on the hub.
        name: String,
        /// What is wrong and what would help.
        message: String,
    },
    /// A request asks for something that cannot be done; nothing was started.
    #[error("{field}: {message}")]
    Request {
        /// The parameter, by its public name.
        field: &'static str,
        /// The value and the values that are allowed.
        message: String,
    },
    /// Too many requests wait already; nothing was started.
    #[error("{waiting} requests wait already, and no more may; try again in {retry_after} s")]
    Busy {
        /// How many wait.
        waiting: usize,
        /// Seconds after which there is likely to be room.
        retry_after: u64,
    },
    /// A chat template failed to parse or to render.
    #[error("chat template: {0}")]
    Template(String),
    /// Text could not be turned into tokens, or tokens into text.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The computation itself failed.
    #[error("mlx: {0}")]
    Mlx(String),
    /// The engine has stopped and takes no more requests.
    #[error("the engine has stopped: {0}")]
    EngineStopped(String),
}

impl Error {
    /// An [`Error::Io`] on `path`.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    /// An [`Error::File`] about `path`.
    pub fn file(path: impl AsRef<Path>, message: impl Into<String>) -> Self {
        Self::File { path: path.as_ref().to_path_buf(), message: message.into() }
    }

    /// An [`Error::Hub`] about the model of that name.
    pub fn hub(name: &(impl ToString + ?Sized), message: impl Into<String>) -> Self {
        Self::Hub { name: name.to_string(), message: message.into() }
    }

    /// An [`Error::Mlx`] about numbers that a model should never give: its weights are broken, or f16 does not reach as far as they do.
    pub(crate) fn not_finite(what: &str) -> Self {
        Self::Mlx(format!(
            "the model gave {what} that is not a number or infinite; where it computes in f16, --dtype bf16 or f32 reaches further"
        ))
    }

    /// An [`Error::Request`] about `field`.
    pub fn request(field: &'static str, message: impl Into<String>) -> Self {
        Self::Request { field, message: message.into() }
    }
}
