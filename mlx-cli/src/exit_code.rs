//! Exit codes: 0 success, 1 failure, 2 invalid request, 130 interrupted.

use std::process::ExitCode;

use mlx_core::Error;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error that has not been printed yet.
    Error(Error),
    /// The user pressed Ctrl-C.
    Interrupted,
    /// An error that has been printed already.
    Reported,
    /// The reader of the output has closed it, as `head` does; there is nothing to report.
    OutputClosed,
}

impl Failure {
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Error(Error::Request { .. }) => ExitCode::from(2),
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
