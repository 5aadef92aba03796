//! What a request may demand of the generated text, and what a model writes around it.

use serde_json::Value;

/// What the generated text must be, and from where on. What cannot be enforced is refused when the request is checked.
#[derive(Debug, Clone, PartialEq)]
pub struct ConstraintSpec {
    /// The texts that are allowed.
    pub grammar: Grammar,
    /// The part of the generated text that must be one of them.
    pub scope: Scope,
}

/// A set of texts.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// These texts.
    Choices(Vec<String>),
    /// JSON that a schema accepts. `docs/structured-output.md` lists the keywords.
    JsonSchema(Value),
    /// The texts that a regular expression matches as a whole, in the syntax of the crate `regex`.
    Regex(String),
    /// The texts of a grammar in llguidance's variant of Lark. `<[151657]>` is the special token of that id; any other token is
    /// written as its text.
    Lark(String),
}

/// The part of a generated text that a constraint holds for. After it the text ends, but in [`Scope::Triggered`].
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Scope {
    /// The answer. In a message it follows the thoughts, and on models that write to channels the header of its channel.
    #[default]
    Answer,
    /// All that follows the thoughts; on models that write to channels the grammar writes the headers of messages.
    AfterThoughts,
    /// Each part that begins behind one of these markers, which are looked for after the thoughts. Before such a part and when
    /// its grammar is complete, the text is free, and its draws are those of a request without a constraint.
    Triggered(Vec<Marker>),
}

impl From<Grammar> for ConstraintSpec {
    /// The grammar of the answer.
    fn from(grammar: Grammar) -> Self {
        Self { grammar, scope: Scope::Answer }
    }
}

impl Grammar {
    /// The name of the field or flag that gives it.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Choices(_) => "choice",
            Self::JsonSchema(_) => "json_schema",
            Self::Regex(_) => "regex",
            Self::Lark(_) => "grammar",
        }
    }
}

/// What the model writes where a constraint begins: texts and special tokens, one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marker(Vec<MarkerPiece>);

/// A part of a marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkerPiece {
    /// A text, however it is cut into tokens.
    Text(String),
    /// A special token.
    Special(u32),
}

impl Marker {
    /// A marker that is a text, however it is cut into tokens.
    pub fn text(text: impl Into<String>) -> Self {
        Self(vec![MarkerPiece::Text(text.into())])
    }

    /// A marker that is a special token.
    pub fn special(token: u32) -> Self {
        Self(vec![MarkerPiece::Special(token)])
    }

    /// This marker with another one behind it.
    #[must_use]
    pub fn then(mut self, next: Self) -> Self {
        self.0.extend(next.0);
        self
    }

    /// The parts in order.
    pub fn pieces(&self) -> &[MarkerPiece] {
        &self.0
    }
}

/// What a model may write before its answer, as a part of a Lark grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preamble {
    /// What stands before the answer in the rule `start`.
    pub start: String,
    /// The rules that it names, a line each.
    pub rules: String,
}

/// The markers of the thoughts before an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thoughts {
    /// Whether the prompt ends within a thought.
    pub is_open: bool,
    /// Opens a thought at the beginning of the text.
    pub open: Marker,
    /// Ends it.
    pub close: Marker,
}
