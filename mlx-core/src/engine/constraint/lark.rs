//! Lark grammars: checks the features that can be enforced.

use serde_json::{Deserializer, Value};

use super::schema;
use crate::error::{Error, Result};

/// Returns the grammar with its JSON schemas in their enforceable form. Refuses features that would weaken it.
pub(super) fn enforceable(text: &str) -> Result<String> {
    let refused = |what: &str| Err(Error::request("grammar", what));
    let mut prepared = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => quoted(rest, '"'),
            '/' if !rest.starts_with("//") => quoted(rest, '/'),
            '/' | '#' => rest.find('\n').unwrap_or(rest.len()),
            't' if is_temperature(rest) => {
                return refused("sets a temperature in a rule; set temperature in the request instead");
            }
            '%' if rest.starts_with("%llguidance") => {
                return refused("contains %llguidance, whose options are not supported; remove it");
            }
            '%' if rest.starts_with("%json") => {
                let (value, length) = json(&rest["%json".len()..])?;
                let schema = schema::enforceable(&value);
                let schema =
                    schema.map_err(|why| Error::request("grammar", format!("has a schema that {why}")))?;
                prepared.push_str("%json ");
                prepared.push_str(&schema.to_string());
                rest = &rest["%json".len() + length..];
                continue;
            }
            other => other.len_utf8(),
        };
        prepared.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    Ok(prepared)
}

/// Returns true if `text` begins with a rule's temperature setting.
fn is_temperature(text: &str) -> bool {
    text.strip_prefix("temperature").is_some_and(|rest| rest.trim_start().starts_with('='))
}

/// Returns the length of the string or regular expression at the start of `text`, up to its closing delimiter or the end of the line.
fn quoted(text: &str, close: char) -> usize {
    let mut is_escaped = false;
    for (at, symbol) in text.char_indices().skip(1) {
        match symbol {
            '\n' => return at,
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if symbol == close => return at + symbol.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// Returns the JSON value at the start of `text`, and its length.
fn json(text: &str) -> Result<(Value, usize)> {
    let mut values = Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => Ok((value, values.byte_offset())),
        Some(Err(error)) => Err(Error::request("grammar", format!("has a %json with invalid JSON: {error}"))),
        None => Err(Error::request("grammar", "has a %json without a schema")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_in_a_grammar_are_checked_like_others() {
        let text = "start: \"%json\" /%json/ a // %json\na: %json {\"type\": \"string\"} # %json\n";
        let prepared = enforceable(text).expect("it can be enforced");
        assert!(prepared.starts_with("start: \"%json\" /%json/ a // %json\na: %json {\"type\":\"string\","));
        assert!(prepared.ends_with("} # %json\n"), "{prepared}");
        for (wrong, word) in [
            ("start: %json {\"not\": {}}", "not"),
            ("start: %json {\"x-guidance\": {\"lenient\": true}}", "x-guidance"),
            ("start: %json {", "%json"),
            ("start: %json", "%json"),
            ("start[temperature = 0.5]: \"a\"", "temperature"),
            ("%llguidance {\"allow_invalid_utf8\": true}\nstart: \"a\"", "%llguidance"),
        ] {
            let message = enforceable(wrong).expect_err(wrong).to_string();
            assert!(message.contains(word), "{message}");
        }
    }
}
