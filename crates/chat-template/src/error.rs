//! Errors of compiling and rendering.

use std::fmt;

use crate::fault::{Fault, Reason};

/// A compile or render error. It displays the bare message of `raise_exception`, or any other reason with the file and
/// the line.
#[derive(Debug)]
pub struct Error {
    message: String,
    depends_on_input: bool,
}

impl Error {
    /// Converts a fault in this file, whose name may be empty.
    pub(crate) fn of(file: &str, fault: Fault) -> Self {
        let depends_on_input = fault.depends_on_input();
        let message = match fault.reason {
            Reason::Raised(message) => return Self { message, depends_on_input },
            Reason::Stopped => "was stopped".to_owned(),
            Reason::Invalid(message) | Reason::Limit(message) => message,
        };
        let line = fault.line.map(|line| format!("line {line}"));
        let place = [file, line.as_deref().unwrap_or_default()];
        let place: Vec<&str> = place.into_iter().filter(|part| !part.is_empty()).collect();
        let message = if place.is_empty() { message } else { format!("{}: {message}", place.join(", ")) };
        Self { message, depends_on_input }
    }

    /// Returns an error of the process, not of the template.
    pub(crate) fn other(message: impl Into<String>) -> Self {
        Self { message: message.into(), depends_on_input: false }
    }

    /// Returns true if the template may succeed with other variables, and false for an exceeded limit.
    pub fn depends_on_input(&self) -> bool {
        self.depends_on_input
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
