//! Internal errors of parsing and rendering.

/// The result of parsing or rendering.
pub(super) type Outcome<T> = Result<T, Fault>;

/// The maximum length of a `raise_exception` message, in bytes.
const MAX_RAISED: usize = 4096;

/// An error and its line.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) reason: Reason,
    /// The line of the template, from 1.
    pub(super) line: Option<u32>,
}

/// The reason of an error.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The template or its input is invalid.
    Invalid(String),
    /// The template called `raise_exception`.
    Raised(String),
    /// The template exceeds a limit on time, memory or depth.
    Limit(String),
    /// The caller stopped the rendering.
    Stopped,
}

impl Fault {
    fn new(reason: Reason) -> Self {
        Self { reason, line: None }
    }

    pub(super) fn raised(message: &str) -> Self {
        Self::new(Reason::Raised(shortened(message, MAX_RAISED)))
    }

    pub(super) fn limit(message: impl Into<String>) -> Self {
        Self::new(Reason::Limit(message.into()))
    }

    pub(super) fn stopped() -> Self {
        Self::new(Reason::Stopped)
    }

    /// Returns true if rendering the same messages in another form may succeed.
    pub(super) fn depends_on_input(&self) -> bool {
        matches!(self.reason, Reason::Invalid(_) | Reason::Raised(_))
    }
}

/// Returns a [`Reason::Invalid`].
pub(super) fn invalid(message: impl Into<String>) -> Fault {
    Fault::new(Reason::Invalid(message.into()))
}

/// Adds the line to a fault without one.
pub(super) fn at<T>(line: u32, outcome: Outcome<T>) -> Outcome<T> {
    outcome.map_err(|mut fault| {
        fault.line.get_or_insert(line);
        fault
    })
}

/// Shortens a text for messages.
pub(super) fn shortened(text: &str, length: usize) -> String {
    if text.len() <= length {
        return text.to_owned();
    }
    format!("{}...", &text[..text.floor_char_boundary(length)])
}
