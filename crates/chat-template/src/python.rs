//! Python's `str` and `repr`.

use super::fault::Outcome;
use super::meter::{Buffer, Meter};
use super::value::{List, ListKind, Map, Value};

/// Returns `str(value)` as a value. A text is returned unchanged.
pub(super) fn str(value: &Value, meter: &Meter) -> Outcome<Value> {
    if let Value::Text(_) = value {
        return Ok(value.clone());
    }
    let mut buffer = Buffer::new(meter);
    write_str(&mut buffer, value)?;
    Value::buffered(buffer, false)
}

/// Writes `str(value)`. Undefined values are empty, as in Jinja's output.
pub(super) fn write_str(output: &mut Buffer, value: &Value) -> Outcome<()> {
    match value {
        Value::Text(_) => output.push(value.as_text().unwrap_or_default()),
        Value::Undefined(_) => Ok(()),
        other => write_repr(output, other),
    }
}

/// Writes `repr(value)`.
pub(super) fn write_repr(output: &mut Buffer, value: &Value) -> Outcome<()> {
    match value {
        Value::Undefined(_) => output.push("Undefined"),
        Value::None => output.push("None"),
        Value::Bool(flag) => output.push(if *flag { "True" } else { "False" }),
        Value::Int(number) => output.push(&number.to_string()),
        Value::Long(digits) => output.push(digits.content()),
        Value::Float(number) => output.push(&float(*number)),
        Value::Text(text) => {
            output.push(if text.safe { "Markup(" } else { "" })?;
            write_quoted(output, value.as_text().unwrap_or_default())?;
            output.push(if text.safe { ")" } else { "" })
        }
        Value::List(list) => write_list(output, list),
        Value::Map(map) => write_map(output, map),
        Value::Object(object) => output.push(&object.label()),
    }
}

fn write_list(output: &mut Buffer, list: &List) -> Outcome<()> {
    let (open, close) = match list.kind {
        ListKind::List => ("[", "]"),
        ListKind::Tuple | ListKind::Group => ("(", if list.items().len() == 1 { ",)" } else { ")" }),
        ListKind::Range(start, stop, 1) => return output.push(&format!("range({start}, {stop})")),
        ListKind::Range(start, stop, stride) => {
            return output.push(&format!("range({start}, {stop}, {stride})"));
        }
        ListKind::View(name) => {
            output.push(name)?;
            ("([", "])")
        }
        ListKind::Generator => return output.push("<generator object>"),
    };
    output.push(open)?;
    for (index, item) in list.items().iter().enumerate() {
        output.push(if index == 0 { "" } else { ", " })?;
        write_repr(output, item)?;
    }
    output.push(close)
}

fn write_map(output: &mut Buffer, map: &Map) -> Outcome<()> {
    output.push("{")?;
    for (index, (key, value)) in map.entries().iter().enumerate() {
        output.push(if index == 0 { "" } else { ", " })?;
        write_repr(output, key.value())?;
        output.push(": ")?;
        write_repr(output, value)?;
    }
    output.push("}")
}

/// Writes a string literal, in single quotes unless the text has single but no double quotes.
fn write_quoted(output: &mut Buffer, text: &str) -> Outcome<()> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    output.push_char(quote)?;
    for letter in text.chars() {
        match letter {
            '\n' => output.push("\\n")?,
            '\r' => output.push("\\r")?,
            '\t' => output.push("\\t")?,
            '\\' => output.push("\\\\")?,
            letter if letter == quote => {
                output.push("\\")?;
                output.push_char(letter)?;
            }
            '\0'..=' ' | '\u{7f}'..='\u{a0}' | '\u{ad}' if letter != ' ' => {
                output.push(&format!("\\x{:02x}", u32::from(letter)))?;
            }
            letter => output.push_char(letter)?,
        }
    }
    output.push_char(quote)
}
/// Formats a float with the fewest digits that round-trip, with an exponent for large and small numbers.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_string();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = number.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// Returns true for the whitespace of `str.strip` and `str.split`: Unicode's, and the four ASCII separators.
pub(super) fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter)
}
