//! Errors of the engine on the wire.

use std::path::PathBuf;

use mlx_core::Error;
use serde::{Deserialize, Serialize};

/// The fields, options, variables and values that an error can name. An unknown one, which only a child of another version could send, becomes
/// part of the message.
const NAMES: [&str; 37] = [
    "HF_ENDPOINT",
    "HF_HOME",
    "a hidden state",
    "a logit",
    "a score",
    "adapters",
    "an embedding",
    "audio",
    "choice",
    "constraint",
    "content",
    "context_policy",
    "device",
    "draft_model",
    "dtype",
    "grammar",
    "ignore_eos",
    "image",
    "images",
    "input",
    "input_audio",
    "json_schema",
    "kv_bits",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "messages",
    "memory_budget",
    "model",
    "prompt",
    "prompt_cache",
    "prompt_logprobs",
    "regex",
    "resume",
    "speculate",
    "stop",
    "tool_format",
];

/// An error of this process, with the kinds that a child can cause.
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
    Hearing(String),
    Mlx(String),
    Internal(String),
    EngineStopped(String),
    Distributed(String),
    File { path: PathBuf, message: String },
    Hub { name: String, message: String },
    NotDownloaded { name: String, message: String },
    Environment { variable: String, message: String },
    NotFinite(String),
    Cache(String),
    Array(String),
    Cancelled,
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
            Error::Hearing(message) => Self::Hearing(message),
            Error::Mlx(message) => Self::Mlx(message),
            Error::Internal(message) => Self::Internal(message),
            Error::EngineStopped(message) => Self::EngineStopped(message),
            Error::Distributed(message) => Self::Distributed(message),
            Error::Files(mlx_files::Error::Io { path, source }) => {
                Self::File { path, message: source.to_string() }
            }
            Error::Files(mlx_files::Error::File { path, message }) => Self::File { path, message },
            Error::Hub { name, message } => Self::Hub { name, message },
            Error::NotDownloaded { name, message } => Self::NotDownloaded { name, message },
            Error::Environment { variable, message } => {
                Self::Environment { variable: variable.to_owned(), message }
            }
            Error::NotFinite(value) => Self::NotFinite(value.to_owned()),
            Error::Cache(message) => Self::Cache(message),
            Error::Array(message) => Self::Array(message),
            Error::Cancelled => Self::Cancelled,
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
            WireError::Hearing(message) => Self::Hearing(message),
            WireError::Mlx(message) => Self::Mlx(message),
            WireError::Internal(message) => Self::Internal(message),
            WireError::Distributed(message) => Self::Distributed(message),
            WireError::File { path, message } => Self::file(path, message),
            WireError::Hub { name, message } => Self::Hub { name, message },
            WireError::NotDownloaded { name, message } => Self::NotDownloaded { name, message },
            WireError::Environment { variable, message } => match known(&variable) {
                Some(variable) => Self::Environment { variable, message },
                None => Self::EngineStopped(format!("{variable}: {message}")),
            },
            WireError::NotFinite(value) => Self::NotFinite(known(&value).unwrap_or("a number")),
            WireError::Cache(message) => Self::Cache(message),
            WireError::Array(message) => Self::Array(message),
            WireError::Cancelled => Self::Cancelled,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_child_reads_as_one_of_this_process() {
        let text = || "is wrong".to_owned();
        let errors = || {
            vec![
                Error::request("top_p", "is 2"),
                Error::context_length("messages", 9, 8, "has 9 tokens"),
                Error::option("prompt_cache", "is in use"),
                Error::environment("HF_HOME", "is not set"),
                Error::Busy { waiting: 3, retry_after: 7 },
                Error::io("a/b", std::io::ErrorKind::NotFound.into()),
                Error::file("a/b", "is damaged"),
                Error::hub("a/b", "is gated"),
                Error::NotDownloaded { name: "a/b".into(), message: text() },
                Error::NotFinite("a logit"),
                Error::Template(text()),
                Error::Tokenizer(text()),
                Error::Sampling(text()),
                Error::Cache(text()),
                Error::Array(text()),
                Error::Mlx(text()),
                Error::Vision(text()),
                Error::Hearing(text()),
                Error::Internal(text()),
                Error::EngineStopped(text()),
                Error::Distributed(text()),
                Error::Cancelled,
            ]
        };
        for (sent, expected) in errors().into_iter().zip(errors()) {
            assert_eq!(Error::from(WireError::from(sent)).to_string(), expected.to_string());
        }
    }
}
