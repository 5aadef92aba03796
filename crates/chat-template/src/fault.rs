//! Why a template cannot be parsed or rendered.

/// The result of a step of parsing or rendering.
pub(super) type Outcome<T> = Result<T, Fault>;

/// The longest message of a template's `raise_exception`, in bytes.
const MAX_RAISED: usize = 4096;

/// A failure and its place.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) reason: Reason,
    /// The line of the template, from 1.
    pub(super) line: Option<u32>,
}

/// What failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The template is wrong, or what it was given.
    Invalid(String),
    /// The template called `raise_exception`.
    Raised(String),
    /// The template takes more time, memory or depth than it may.
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

    /// Whether rendering the same messages in another form may succeed.
    pub(super) fn depends_on_input(&self) -> bool {
        matches!(self.reason, Reason::Invalid(_) | Reason::Raised(_))
    }
}

/// A [`Reason::Invalid`].
pub(super) fn invalid(message: impl Into<String>) -> Fault {
    Fault::new(Reason::Invalid(message.into()))
}

/// Adds the line to a fault that has none.
pub(super) fn at<T>(line: u32, outcome: Outcome<T>) -> Outcome<T> {
    outcome.map_err(|mut fault| {
        fault.line.get_or_insert(line);
        fault
    })
}

/// The beginning of a text, for messages.
pub(super) fn shortened(text: &str, length: usize) -> String {
    if text.len() <= length {
        return text.to_owned();
    }
    format!("{}...", &text[..text.floor_char_boundary(length)])
}
