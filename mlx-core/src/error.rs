//! The error type of the engine: what is wrong, where, and what would fix it. It takes up the errors of the crates below.

use std::path::{Path, PathBuf};

/// The result of every operation here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed. Messages are lower-case sentences that name the file, field or option; which flag or command that is, front
/// ends add.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
        /// The key in it and what is wrong with it.
        message: String,
    },
    /// A folder to write to has files in it already.
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
        /// What is wrong and what would help.
        message: String,
    },
    /// A model of the hub is not on this machine, or only in part.
    #[error("{name}: {message}")]
    NotDownloaded {
        /// The model, by its name on the hub.
        name: String,
        /// What is missing.
        message: String,
    },
    /// A field of a request has a value that cannot be used; nothing was started.
    #[error("{field}: {message}")]
    Request {
        /// The field, by its public name.
        field: &'static str,
        /// The value and the values that are allowed.
        message: String,
    },
    /// A prompt does not fit the model's context; nothing was started.
    #[error("{field}: {message}")]
    ContextLength {
        /// The field, by its public name.
        field: &'static str,
        /// How many tokens it has, and how many fit.
        message: String,
        /// The tokens that it has, or at least has: more than `limit`.
        tokens: usize,
        /// The tokens that fit.
        limit: usize,
    },
    /// An option of an engine, a conversion or a download has a value that cannot be used.
    #[error("{name}: {message}")]
    Option {
        /// The option, by the name of its field.
        name: &'static str,
        /// The value and the values that are allowed.
        message: String,
    },
    /// An environment variable is missing or has a value that cannot be used.
    #[error("{variable}: {message}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// The queue is full; nothing was started.
    #[error("{waiting} requests wait already, and no more may; try again in {retry_after} s")]
    Busy {
        /// Requests in the queue.
        waiting: usize,
        /// Seconds after which the queue is likely to be shorter.
        retry_after: u64,
    },
    /// A chat template failed to parse or to render.
    #[error("chat template: {0}")]
    Template(String),
    /// Text could not be turned into tokens, or tokens into text.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// No token can be drawn.
    #[error("sampling: {0}")]
    Sampling(String),
    /// The model computed a number that is not finite: its weights are broken, or its values exceed the range of f16.
    #[error(
        "the model computed {0} that is not a number or infinite; if dtype is f16, bf16 and f32 have a wider range"
    )]
    NotFinite(&'static str),
    /// The state of a sequence cannot be stored or restored.
    #[error("cache: {0}")]
    Cache(String),
    /// Numbers cannot become a tensor, or a tensor numbers.
    #[error("array: {0}")]
    Array(String),
    /// MLX reported an error.
    #[error("mlx: {0}")]
    Mlx(String),
    /// The client of a request has left.
    #[error("the request was cancelled")]
    Cancelled,
    /// A machine that holds a part of the model is away, or cannot do what it is asked for.
    #[error("{0}")]
    Distributed(String),
    /// A model that sees cannot be given images here: its tower or the files that describe it cannot be used, or the tower has no room.
    #[error("the model cannot be given images: {0}")]
    Vision(String),
    /// A bug of this project, not of the caller: an assumption of the code does not hold.
    #[error("internal error, please report it: {0}")]
    Internal(String),
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

    /// An [`Error::Request`] about `field`.
    pub fn request(field: &'static str, message: impl Into<String>) -> Self {
        Self::Request { field, message: message.into() }
    }

    /// An [`Error::ContextLength`] about `field`, which has so many tokens, or more, where `limit` fit.
    pub fn context_length(
        field: &'static str,
        tokens: usize,
        limit: usize,
        message: impl Into<String>,
    ) -> Self {
        Self::ContextLength { field, message: message.into(), tokens, limit }
    }

    /// An [`Error::Option`] about the option of that name.
    pub fn option(name: &'static str, message: impl Into<String>) -> Self {
        Self::Option { name, message: message.into() }
    }

    /// An [`Error::Environment`] about `variable`.
    pub fn environment(variable: &'static str, message: impl Into<String>) -> Self {
        Self::Environment { variable, message: message.into() }
    }
}

impl From<mlx_files::Error> for Error {
    fn from(error: mlx_files::Error) -> Self {
        match error {
            mlx_files::Error::Io { path, source } => Self::Io { path, source },
            mlx_files::Error::File { path, message } => Self::File { path, message },
        }
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
