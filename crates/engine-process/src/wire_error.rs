//! Errors of the engine on the wire.

use std::path::PathBuf;

use mlx_core::Error;
use serde::{Deserialize, Serialize};

/// The fields and options that an error can name. An unknown one, which only a child of another version could send, becomes part of the
/// message.
const NAMES: [&str; 24] = [
    "adapters",
    "choice",
    "constraint",
    "context_policy",
    "draft_model",
    "dtype",
    "grammar",
    "ignore_eos",
    "image",
    "images",
    "json_schema",
    "kv_bits",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "memory_budget",
    "model",
    "prompt",
    "prompt_logprobs",
    "regex",
    "resume",
    "speculate",
    "stop",
    "tool_format",
];

/// An error that a client may have caused keeps its kind. Of all others, the message is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum WireError {
    Request { field: String, message: String },
    ContextLength { field: String, message: String, tokens: usize, limit: usize },
    Option { name: String, message: String },
    Busy { waiting: usize, retry_after: u64 },
    Template(String),
    Tokenizer(String),
    Sampling(String),
    Vision(String),
    Mlx(String),
    Internal(String),
    EngineStopped(String),
    File { path: PathBuf, message: String },
    Other(String),
}

impl From<Error> for WireError {
    fn from(error: Error) -> Self {
        match error {
            Error::Request { field, message } => Self::Request { field: field.to_owned(), message },
            Error::ContextLength { field, message, tokens, limit } => {
                Self::ContextLength { field: field.to_owned(), message, tokens, limit }
            }
            Error::Option { name, message } => Self::Option { name: name.to_owned(), message },
            Error::Busy { waiting, retry_after } => Self::Busy { waiting, retry_after },
            Error::Template(message) => Self::Template(message),
            Error::Tokenizer(message) => Self::Tokenizer(message),
            Error::Sampling(message) => Self::Sampling(message),
            Error::Vision(message) => Self::Vision(message),
            Error::Mlx(message) => Self::Mlx(message),
            Error::Internal(message) => Self::Internal(message),
            Error::EngineStopped(message) => Self::EngineStopped(message),
            Error::Files(mlx_files::Error::Io { path, source }) => {
                Self::File { path, message: source.to_string() }
            }
            Error::Files(mlx_files::Error::File { path, message }) => Self::File { path, message },
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Request { field, message } => match known(&field) {
                Some(field) => Self::Request { field, message },
                None => Self::Request { field: "request", message: format!("{field} {message}") },
            },
            WireError::ContextLength { field, message, tokens, limit } => {
                let field = known(&field).unwrap_or("prompt");
                Self::ContextLength { field, message, tokens, limit }
            }
            WireError::Option { name, message } => match known(&name) {
                Some(name) => Self::Option { name, message },
                None => Self::EngineStopped(format!("{name}: {message}")),
            },
            WireError::Busy { waiting, retry_after } => Self::Busy { waiting, retry_after },
            WireError::Template(message) => Self::Template(message),
            WireError::Tokenizer(message) => Self::Tokenizer(message),
            WireError::Sampling(message) => Self::Sampling(message),
            WireError::Vision(message) => Self::Vision(message),
            WireError::Mlx(message) => Self::Mlx(message),
            WireError::Internal(message) => Self::Internal(message),
            WireError::File { path, message } => Self::file(path, message),
            WireError::EngineStopped(message) | WireError::Other(message) => Self::EngineStopped(message),
        }
    }
}

fn known(name: &str) -> Option<&'static str> {
    let options = mlx_core::sampling::PARAMETERS.iter().map(|parameter| parameter.name);
    NAMES
        .into_iter()
        .chain(options)
        .chain(["dry_sequence_breakers", "seed", "request"])
        .find(|it| *it == name)
}
