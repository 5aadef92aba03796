//! What a request may demand of the text that is generated, and from where on.

use serde_json::Value;

use super::frame::Marker;
use super::{lark, schema};
use crate::error::{Error, Result};

/// The most texts of [`Grammar::Choices`], and the most bytes of each.
const MAX_CHOICES: usize = 256;
const MAX_CHOICE_BYTES: usize = 4096;

/// The most bytes of a regular expression, and of a grammar.
const MAX_REGEX_BYTES: usize = 16 << 10;
const MAX_GRAMMAR_BYTES: usize = 1 << 20;

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

impl ConstraintSpec {
    /// Refuses what cannot be enforced, whatever the model.
    pub(in crate::engine) fn check_form(&self) -> Result<()> {
        match &self.grammar {
            Grammar::Choices(choices) => check_choices(choices),
            Grammar::JsonSchema(value) => {
                schema::enforceable(value).map(drop).map_err(|why| Error::request("json_schema", why))
            }
            Grammar::Regex(regex) => check_size("regex", regex, MAX_REGEX_BYTES),
            Grammar::Lark(text) => {
                check_size("grammar", text, MAX_GRAMMAR_BYTES)?;
                lark::enforceable(text).map(drop)
            }
        }
    }
}

impl Grammar {
    /// The name of the field or flag that gives it.
    pub(super) fn field(&self) -> &'static str {
        match self {
            Self::Choices(_) => "choice",
            Self::JsonSchema(_) => "json_schema",
            Self::Regex(_) => "regex",
            Self::Lark(_) => "grammar",
        }
    }
}

fn check_choices(choices: &[String]) -> Result<()> {
    if choices.is_empty() || choices.len() > MAX_CHOICES {
        let message = format!("has {} texts; it must have from 1 to {MAX_CHOICES}", choices.len());
        return Err(Error::request("choice", message));
    }
    if choices.iter().any(|choice| choice.is_empty() || choice.len() > MAX_CHOICE_BYTES) {
        let message = format!("has an empty text or one of more than {MAX_CHOICE_BYTES} bytes");
        return Err(Error::request("choice", message));
    }
    Ok(())
}

fn check_size(field: &'static str, text: &str, most: usize) -> Result<()> {
    if text.is_empty() || text.len() > most {
        let message = format!("has {} bytes; it must have from 1 to {most}", text.len());
        return Err(Error::request(field, message));
    }
    Ok(())
}
