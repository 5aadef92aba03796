//! What a model writes around a constrained text: thoughts, headers, markers. Chat formats say it, constraints follow it.

/// What the model writes where a constraint begins: texts and special tokens, one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marker(Vec<Piece>);

/// A part of a marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    Special(u32),
}

impl Marker {
    /// A marker that is a text, however it is cut into tokens.
    pub fn text(text: impl Into<String>) -> Self {
        Self(vec![Piece::Text(text.into())])
    }

    /// A marker that is a special token.
    pub fn special(token: u32) -> Self {
        Self(vec![Piece::Special(token)])
    }

    /// This marker with another one behind it.
    #[must_use]
    pub fn then(mut self, next: Self) -> Self {
        self.0.extend(next.0);
        self
    }

    pub(super) fn pieces(&self) -> &[Piece] {
        &self.0
    }
}

/// What a model may write before its answer, as a part of a Lark grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Preamble {
    /// What stands before the answer in the rule `start`.
    pub(crate) start: String,
    /// The rules that it names, a line each.
    pub(crate) rules: String,
}

/// The markers of the thoughts before an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Thoughts {
    /// Whether the prompt ends within a thought.
    pub(crate) is_open: bool,
    /// Opens a thought at the beginning of the text.
    pub(crate) open: Marker,
    /// Ends it.
    pub(crate) close: Marker,
}
