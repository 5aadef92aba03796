//! Python's text form of values, and the binding of arguments to Python's parameter names.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, Value};

/// The arguments of a call.
pub(super) type Arguments = Rest<ValueOrKwargs>;

/// Binds arguments to parameter names by position or name, as in Python; `none` counts as absent.
pub(super) fn bind<const N: usize>(
    names: [&str; N],
    arguments: Arguments,
) -> Result<[Option<Value>; N], Error> {
    bind_values(names, &arguments.into_values())
}

/// [`bind`] for a slice of arguments.
pub(super) fn bind_values<const N: usize>(
    names: [&str; N],
    values: &[Value],
) -> Result<[Option<Value>; N], Error> {
    let (positional, keywords): (&[Value], Kwargs) = from_args(values)?;
    if positional.len() > N {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut bound = [const { None }; N];
    for (index, name) in names.into_iter().enumerate() {
        let value = match positional.get(index) {
            Some(value) => Some(value.clone()),
            None if keywords.has(name) => Some(keywords.get(name)?),
            None => None,
        };
        bound[index] = value.filter(|value| !value.is_none());
    }
    keywords.assert_all_used()?;
    Ok(bound)
}

/// An error like Python's `TypeError`.
pub(super) fn type_error(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// `str(value)`; undefined is empty, as Jinja prints it.
pub(super) fn str(value: &Value) -> String {
    match value.kind() {
        ValueKind::String | ValueKind::Undefined => value.to_string(),
        _ => repr(value),
    }
}

/// `repr(value)`.
pub(super) fn repr(value: &Value) -> String {
    let mut output = String::new();
    write_repr(&mut output, value, 0);
    output
}

/// The depth to which nested values are printed; deeper ones would exhaust the stack.
const MAX_DEPTH: usize = 200;
/// The length at which a printed value is cut off: a list that contains itself twice at every level would never end.
pub(super) const MAX_LENGTH: usize = 1 << 25;

fn write_repr(output: &mut String, value: &Value, depth: usize) {
    match value.kind() {
        ValueKind::Undefined => output.push_str("Undefined"),
        ValueKind::Number if !value.is_integer() => {
            output.push_str(&f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float));
        }
        ValueKind::String => write_quoted(output, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable if value.len().is_some() => {
            if depth == MAX_DEPTH {
                output.push_str("...");
            } else {
                write_container(output, value, depth + 1);
            }
        }
        _ => output.push_str(&value.to_string()),
    }
}

fn write_container(output: &mut String, value: &Value, depth: usize) {
    let is_map = value.kind() == ValueKind::Map;
    let (open, close) = match value.is_tuple() {
        true => ("(", if value.len() == Some(1) { ",)" } else { ")" }),
        false if is_map => ("{", "}"),
        false => ("[", "]"),
    };
    output.push_str(open);
    for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
        output.push_str(if index == 0 { "" } else { ", " });
        if output.len() > MAX_LENGTH {
            output.push_str("...");
            break;
        }
        write_repr(output, &item, depth);
        if is_map {
            output.push_str(": ");
            write_repr(output, &value.get_item(&item).unwrap_or_default(), depth);
        }
    }
    output.push_str(close);
}

/// A string literal, in single quotes unless the text has single but no double quotes.
fn write_quoted(output: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    output.push(quote);
    for letter in text.chars() {
        match letter {
            '\n' => output.push_str("\\n"),
            '\r' => output.push_str("\\r"),
            '\t' => output.push_str("\\t"),
            '\\' => output.push_str("\\\\"),
            letter if letter == quote => output.extend(['\\', quote]),
            '\0'..=' ' | '\u{7f}'..='\u{a0}' | '\u{ad}' if letter != ' ' => {
                // Writing to a string cannot fail.
                let _ = write!(output, "\\x{:02x}", u32::from(letter));
            }
            letter => output.push(letter),
        }
    }
    output.push(quote);
}

/// A float with the fewest digits that round-trip, with an exponent for large and small numbers.
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

/// Whitespace for `str.strip` and `str.split`: Unicode's, and the four separators of ASCII.
pub(super) fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter)
}

/// Whether `str.splitlines` ends a line here.
fn is_break(letter: char) -> bool {
    matches!(
        letter,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// The lines of `text`, each with the length of its line break.
pub(super) fn lines(text: &str) -> Vec<(&str, usize)> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(is_break) {
        let letter = if rest[start..].starts_with("\r\n") {
            2
        } else {
            rest[start..].chars().next().map_or(0, char::len_utf8)
        };
        let (line, after) = rest.split_at(start + letter);
        lines.push((line, letter));
        rest = after;
    }
    if !rest.is_empty() {
        lines.push((rest, 0));
    }
    lines
}
