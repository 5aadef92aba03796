//! The reasons why a child died.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The kind of a death, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The child was not even started.
    Start,
    /// The child exited.
    Exit,
    /// A signal ended it.
    Signal,
    /// A step or a call made no progress.
    Stall,
    /// It sent bytes that are no message.
    Garbage,
    /// It lost a machine that holds a part of the model.
    Machine,
}

/// The death of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Death {
    pub(crate) kind: Kind,
    /// The cause: the predicate of a sentence, or for a machine a whole sentence.
    pub(crate) cause: String,
}

impl Death {
    /// Returns the death of a child that ended without our help.
    pub(crate) fn ended(status: Option<ExitStatus>) -> Self {
        let (kind, cause) = match status.map(|status| (status.code(), status.signal())) {
            Some((_, Some(signal))) => (Kind::Signal, format!("was ended by signal {signal}")),
            Some((Some(code), _)) => (Kind::Exit, format!("exited with status {code}")),
            _ => (Kind::Exit, "ended".to_owned()),
        };
        Self { kind, cause }
    }

    /// Returns the end of a child that could not be started.
    pub(crate) fn unstarted(error: &std::io::Error) -> Self {
        Self { kind: Kind::Start, cause: format!("could not be started ({error})") }
    }

    /// Returns the death of a child that was killed because it made no progress.
    pub(crate) fn stalled(work: &str, seconds: u64) -> Self {
        Self {
            kind: Kind::Stall,
            cause: format!("was killed, since {work} made no progress for {seconds} s"),
        }
    }

    /// Returns the death of a child that was killed because of its bytes.
    pub(crate) fn garbage(error: impl fmt::Display) -> Self {
        Self { kind: Kind::Garbage, cause: format!("was killed, since {error}") }
    }

    /// Returns the death of a child that lost a machine.
    pub(crate) fn lost_machine(message: String) -> Self {
        Self { kind: Kind::Machine, cause: message }
    }
}

impl fmt::Display for Death {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == Kind::Machine {
            return out.write_str(&self.cause);
        }
        write!(out, "the engine's process {}", self.cause)
    }
}
