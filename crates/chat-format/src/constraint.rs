//! Constraints on the generated text, and the text that a model writes before it.

use serde::{Deserialize, Serialize};

use serde_json::Value;

/// A constraint on the generated text, and the part to which it applies. A constraint that cannot be enforced is
/// rejected when the request is checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConstraintSpec {
    /// The allowed texts.
    pub grammar: Grammar,
    /// The part of the generated text to which the grammar applies.
    pub scope: Scope,
}

/// A set of texts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Grammar {
    /// One of these texts.
    Choices(Vec<String>),
    /// JSON that matches a schema. `docs/structured-output.md` lists the keywords.
    JsonSchema(Value),
    /// A text that the regular expression matches as a whole, in the syntax of the crate `regex`.
    Regex(String),
    /// A text of a grammar in llguidance's variant of Lark. `<[151657]>` is the special token with that id. Other
    /// tokens are written as their text.
    Lark(String),
}

/// The part of a generated text to which a constraint applies. The text ends after it, except with
/// [`Scope::Triggered`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub enum Scope {
    /// The answer. It follows the thoughts and, on models with channels, the header of its channel.
    #[default]
    Answer,
    /// Everything after the thoughts. On models with channels, the grammar includes the headers of messages.
    AfterThoughts,
    /// Each segment after one of these markers, which are searched for after the thoughts. Before a segment, and after
    /// its grammar is complete, the text is unconstrained and is sampled like that of a request without a constraint.
    Triggered(Vec<Marker>),
}

impl From<Grammar> for ConstraintSpec {
    /// Applies the grammar to the answer.
    fn from(grammar: Grammar) -> Self {
        Self { grammar, scope: Scope::Answer }
    }
}

impl Grammar {
    /// Returns the name of the field or flag that sets it.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Choices(_) => "choice",
            Self::JsonSchema(_) => "json_schema",
            Self::Regex(_) => "regex",
            Self::Lark(_) => "grammar",
        }
    }
}

/// The beginning of a constraint in the generated text: a sequence of texts and special tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker(Vec<MarkerPiece>);

/// An item of a marker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MarkerPiece {
    /// A text, in any tokenization.
    Text(String),
    /// A special token.
    Special(u32),
}

impl Marker {
    /// Returns a marker that is a text, in any tokenization.
    pub fn text(text: impl Into<String>) -> Self {
        Self(vec![MarkerPiece::Text(text.into())])
    }

    /// Returns a marker that is a special token.
    pub fn special(token: u32) -> Self {
        Self(vec![MarkerPiece::Special(token)])
    }

    /// Appends another marker.
    #[must_use]
    pub fn then(mut self, next: Self) -> Self {
        self.0.extend(next.0);
        self
    }

    /// Returns the items in order.
    pub fn pieces(&self) -> &[MarkerPiece] {
        &self.0
    }
}

/// The text that a model may write before its answer, as part of a Lark grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preamble {
    /// The items before the answer in the rule `start`.
    pub start: String,
    /// The rules that `start` refers to, one per line.
    pub rules: String,
}

/// The markers of the thoughts before an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thoughts {
    /// True if the prompt ends inside a thought.
    pub is_open: bool,
    /// Opens a thought at the beginning of the text.
    pub open: Marker,
    /// Closes a thought.
    pub close: Marker,
}
