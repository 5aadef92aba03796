//! Checks of constraints that do not depend on a model.

use chat_format::{ConstraintSpec, Grammar};

use super::{lark, schema};
use crate::error::{Error, Result};

/// The maximum number of texts in [`Grammar::Choices`], and the maximum number of bytes of each.
const MAX_CHOICES: usize = 256;
const MAX_CHOICE_BYTES: usize = 4096;

/// The maximum number of bytes of a regular expression, and of a grammar.
const MAX_REGEX_BYTES: usize = 16 << 10;
const MAX_GRAMMAR_BYTES: usize = 1 << 20;

/// Refuses constraints that cannot be enforced on any model.
pub(in crate::engine) fn check_form(spec: &ConstraintSpec) -> Result<()> {
    match &spec.grammar {
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

fn check_choices(choices: &[String]) -> Result<()> {
    if choices.is_empty() || choices.len() > MAX_CHOICES {
        let message = format!("has {} texts; it must have from 1 to {MAX_CHOICES}", choices.len());
        return Err(Error::request("choice", message));
    }
    if choices.iter().any(|choice| choice.is_empty() || choice.len() > MAX_CHOICE_BYTES) {
        let message = format!("has an empty text or a text of more than {MAX_CHOICE_BYTES} bytes");
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
