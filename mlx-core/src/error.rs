//! The error type of the engine. An error describes the problem, its location and its fix. Errors of the crates below convert to it.

use std::path::{Path, PathBuf};

/// The result of a fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of an operation. Messages are lower-case sentences that name the file, field or option. Front ends add the corresponding flag
/// or command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read, written or used.
    #[error(transparent)]
    Files(#[from] mlx_files::Error),
    /// A folder to write to already contains files.
    #[error("{}: is not empty", folder.display())]
    NotEmpty {
        /// The folder.
        folder: PathBuf,
    },
    /// A model has no chat template, so messages cannot become a prompt.
    #[error("{}: has no chat template, so the model cannot chat", folder.display())]
    NoChatTemplate {
        /// The model's folder.
        folder: PathBuf,
    },
    /// A model of the hub cannot be used.
    #[error("{name}: {message}")]
    Hub {
        /// The model, by its name on the hub.
        name: String,
        /// The problem and its fix.
        message: String,
    },
    /// A model of the hub is not downloaded, or only in part.
    #[error("{name}: {message}")]
    NotDownloaded {
        /// The model, by its name on the hub.
        name: String,
        /// The missing parts.
        message: String,
    },
    /// A field of a request has an invalid value. Nothing was started.
    #[error("{field}: {message}")]
    Request {
        /// The field, by its public name.
        field: &'static str,
        /// The value and the allowed values.
        message: String,
    },
    /// A prompt does not fit into the model's context. Nothing was started.
    #[error("{field}: {message}")]
    ContextLength {
        /// The field, by its public name.
        field: &'static str,
        /// The number of tokens in the prompt and the number that fits.
        message: String,
        /// The number of tokens in the prompt, or a lower bound above `limit`.
        tokens: usize,
        /// The number of tokens that fit.
        limit: usize,
    },
    /// An option of an engine, a conversion or a download has an invalid value.
    #[error("{name}: {message}")]
    Option {
        /// The name of the option's field.
        name: &'static str,
        /// The value and the allowed values.
        message: String,
    },
    /// An environment variable is missing or has an invalid value.
    #[error("{variable}: {message}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// The problem with its value.
        message: String,
    },
    /// The queue is full. Nothing was started.
    #[error("{waiting} requests wait already, and no more may; try again in {retry_after} s")]
    Busy {
        /// The number of requests in the queue.
        waiting: usize,
        /// The number of seconds after which the queue is likely to be shorter.
        retry_after: u64,
    },
    /// A chat template failed to parse or to render.
    #[error("chat template: {0}")]
    Template(String),
    /// Text could not be converted to tokens, or tokens to text.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// No token can be drawn.
    #[error("sampling: {0}")]
    Sampling(String),
    /// The model computed a non-finite number: its weights are broken, or its values exceed the range of f16.
    #[error(
        "the model computed {0} that is NaN or infinite; if dtype is f16, try bf16 or f32, which have a wider range"
    )]
    NotFinite(&'static str),
    /// The state of a sequence cannot be stored or restored.
    #[error("cache: {0}")]
    Cache(String),
    /// Numbers cannot be converted to a tensor, or a tensor to numbers.
    #[error("array: {0}")]
    Array(String),
    /// MLX reported an error.
    #[error("mlx: {0}")]
    Mlx(String),
    /// The client of a request has disconnected.
    #[error("the request was cancelled")]
    Cancelled,
    /// A machine with a part of the model is unreachable, or does not support an operation.
    #[error("{0}")]
    Distributed(String),
    /// A multimodal model cannot take images here: its tower or the files for it are unusable, or there is no memory for the tower.
    #[error("the model cannot take images: {0}")]
    Vision(String),
    /// Like [`Error::Vision`], for audio.
    #[error("the model cannot take audio: {0}")]
    Hearing(String),
    /// An assumption of the code does not hold. This is a bug of this project, not of the caller.
    #[error("internal error, please report it: {0}")]
    Internal(String),
    /// The engine has stopped and rejects further requests.
    #[error("the engine has stopped: {0}")]
    EngineStopped(String),
}

impl Error {
    /// Creates an error about reading or writing the file at `path`.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        mlx_files::Error::Io { path: path.into(), source }.into()
    }

    /// Creates an error about the content of the file or folder at `path`.
    pub fn file(path: impl AsRef<Path>, message: impl Into<String>) -> Self {
        mlx_files::Error::File { path: path.as_ref().to_path_buf(), message: message.into() }.into()
    }

    /// Creates an [`Error::Hub`] for the model with this name.
    pub fn hub(name: &(impl ToString + ?Sized), message: impl Into<String>) -> Self {
        Self::Hub { name: name.to_string(), message: message.into() }
    }

    /// Creates an [`Error::Request`] for `field`.
    pub fn request(field: &'static str, message: impl Into<String>) -> Self {
        Self::Request { field, message: message.into() }
    }

    /// Creates an [`Error::ContextLength`] for `field` with at least `tokens` tokens, of which `limit` fit.
    pub fn context_length(
        field: &'static str,
        tokens: usize,
        limit: usize,
        message: impl Into<String>,
    ) -> Self {
        Self::ContextLength { field, message: message.into(), tokens, limit }
    }

    /// Creates an [`Error::Option`] for the option with this name.
    pub fn option(name: &'static str, message: impl Into<String>) -> Self {
        Self::Option { name, message: message.into() }
    }

    /// Creates an [`Error::Environment`] for `variable`.
    pub fn environment(variable: &'static str, message: impl Into<String>) -> Self {
        Self::Environment { variable, message: message.into() }
    }
}

impl From<chat_format::Error> for Error {
    fn from(error: chat_format::Error) -> Self {
        match error {
            chat_format::Error::Files(error) => error.into(),
            chat_format::Error::Request { field, message } => Self::Request { field, message },
            chat_format::Error::Template(message) => Self::Template(message),
            chat_format::Error::Tokenizer(message) => Self::Tokenizer(message),
            chat_format::Error::Cancelled => Self::Cancelled,
        }
    }
}

impl From<mlx_hub::Error> for Error {
    fn from(error: mlx_hub::Error) -> Self {
        match error {
            mlx_hub::Error::Files(error) => error.into(),
            mlx_hub::Error::Hub { name, message } => Self::Hub { name, message },
            mlx_hub::Error::NotDownloaded { name, message } => Self::NotDownloaded { name, message },
            mlx_hub::Error::Option { name, message } => Self::Option { name, message },
            mlx_hub::Error::Environment { variable, message } => Self::Environment { variable, message },
        }
    }
}
