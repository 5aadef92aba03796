//! Exit codes of commands: 0 done, 1 failed, 2 invalid usage, 130 interrupted.

use std::process::ExitCode;

use mlx_core::Error;
use mlx_options::describe;

/// The reason why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of the core; its message has not been shown yet.
    Error(Error),
    /// Invalid flags; the message has not been shown yet.
    Usage(String),
    /// Ctrl-C was pressed.
    Interrupted,
    /// The command failed, and the message has been shown already.
    Reported,
    /// The reader of standard output closed it, as `head` does.
    OutputClosed,
}

impl Failure {
    /// Returns a [`Failure::Usage`] about `flag`.
    pub(crate) fn usage(flag: &str, message: impl AsRef<str>) -> Self {
        Self::Usage(format!("{flag} {}", message.as_ref()))
    }

    /// Returns the message, if it has not been shown yet.
    pub(crate) fn message(&self) -> Option<String> {
        match self {
            Self::Error(error) => Some(describe(error)),
            Self::Usage(message) => Some(message.clone()),
            Self::Interrupted | Self::Reported | Self::OutputClosed => None,
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_)
            | Self::Error(
                Error::Request { .. }
                | Error::ContextLength { .. }
                | Error::Option { .. }
                | Error::Environment { .. },
            ) => ExitCode::from(2),
            Self::Error(_) | Self::Reported => ExitCode::from(1),
            Self::Interrupted => ExitCode::from(130),
            Self::OutputClosed => ExitCode::SUCCESS,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<mlx_files::Error> for Failure {
    fn from(error: mlx_files::Error) -> Self {
        Self::Error(error.into())
    }
}

impl From<chat_format::Error> for Failure {
    fn from(error: chat_format::Error) -> Self {
        Self::Error(error.into())
    }
}

impl From<mlx_hub::Error> for Failure {
    fn from(error: mlx_hub::Error) -> Self {
        Self::Error(error.into())
    }
}
