//! What the program tells its caller: 0 done, 1 failed, 2 impossible request, 130 interrupted.

use std::process::ExitCode;

use mlx_core::Error;

/// Why a command did not end well.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something was wrong; the message has not been shown yet.
    Error(Error),
    /// The person pressed Ctrl-C.
    Interrupted,
    /// It failed and has said so already.
    Reported,
    /// Whoever read our output has gone, as `head` does; there is nobody to tell.
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
