//! The values of a profile's keys. An error is the reason as the rest of a sentence that begins with the key.

use std::str::FromStr;

use mlx_core::sampling::Parameter;
use toml::Value;

/// The maximum number of characters of a value in an error.
const SHOWN: usize = 60;

/// Returns an error about a value.
fn wrong(value: &Value, expected: &str) -> String {
    let text = value.to_string().replace('\n', " ");
    let shown: String = text.chars().take(SHOWN).collect();
    let dots = if shown.len() < text.len() { "..." } else { "" };
    format!("is {shown}{dots}; it must be {expected}")
}

/// Reads a text that is not empty.
pub(super) fn text(value: &Value) -> Result<String, String> {
    let text = value.as_str().filter(|text| !text.trim().is_empty());
    text.map(str::to_owned).ok_or_else(|| wrong(value, "a text"))
}

/// Reads the name of a profile.
pub(super) fn name(value: &Value) -> Result<String, String> {
    const FORM: &str =
        "a text without control characters, without spaces at its ends and not ending in :latest";
    let name = text(value)?;
    // Clients of Ollama add the suffix to every name.
    let is_odd = name.trim() != name || name.chars().any(char::is_control) || name.ends_with(":latest");
    if is_odd { Err(wrong(value, FORM)) } else { Ok(name) }
}

/// Reads one of the words that `expected` lists.
pub(super) fn word<T: FromStr>(value: &Value, expected: &str) -> Result<T, String> {
    value.as_str().and_then(|text| text.parse().ok()).ok_or_else(|| wrong(value, expected))
}

/// Reads a whole number of at least `min`.
pub(super) fn count<T: TryFrom<i64>>(value: &Value, min: i64) -> Result<T, String> {
    let count = value.as_integer().filter(|count| *count >= min).and_then(|count| T::try_from(count).ok());
    count.ok_or_else(|| wrong(value, &format!("a whole number of at least {min}")))
}

/// Reads a list of texts.
pub(super) fn texts(value: &Value) -> Result<Vec<String>, String> {
    let texts = value.as_array().and_then(|list| {
        list.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<Vec<String>>>()
    });
    texts.ok_or_else(|| wrong(value, "a list of texts"))
}

/// Reads the value of a sampling parameter. Like a request, it is read as a decimal number, so it has the same bits.
pub(super) fn number(value: &Value, parameter: &Parameter) -> Result<f64, String> {
    let number = Some(value).filter(|value| value.is_integer() || value.is_float());
    let number = number.and_then(|number| parameter.parse(&number.to_string()));
    number.ok_or_else(|| wrong(value, parameter.kind.words()))
}

/// Reads values to add to the logits of tokens, by token id.
pub(super) fn bias(value: &Value) -> Result<Vec<(u32, f32)>, String> {
    let entry = |(id, bias): (&String, &Value)| {
        let number = Some(bias).filter(|bias| bias.is_integer() || bias.is_float()).map(Value::to_string);
        // A record has an infinite number as a text, since JSON has none.
        let number = number.or_else(|| bias.as_str().map(str::to_owned))?;
        Some((id.parse().ok()?, number.parse().ok()?))
    };
    let entries = value.as_table().and_then(|table| table.iter().map(entry).collect::<Option<Vec<_>>>());
    entries.ok_or_else(|| wrong(value, "a table of numbers by token id, such as { 15043 = -2.5 }"))
}
