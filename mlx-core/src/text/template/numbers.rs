//! The filters `int` and `float` with Python's number syntax.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::python::{Arguments, bind, is_space};

/// `int(value, default=0, base=10)`
pub(super) fn int(value: &Value, arguments: Arguments) -> Result<Value, Error> {
    let [default, base] = bind(["default", "base"], arguments)?;
    let base = base.map_or(Ok(10), u32::try_from)?;
    let parsed = match value.as_str() {
        Some(text) => parse_int(text, base).or_else(|| parse_float(text).and_then(truncated)),
        None if value.is_undefined() => return Err(Error::from(ErrorKind::UndefinedError)),
        None if is_integer(value) => integer(value),
        None => f64::try_from(value.clone()).ok().and_then(truncated),
    };
    Ok(parsed.map_or_else(|| default.unwrap_or_else(|| Value::from(0)), number))
}

/// `float(value, default=0.0)`
pub(super) fn float(value: &Value, arguments: Arguments) -> Result<Value, Error> {
    let [default] = bind(["default"], arguments)?;
    let parsed = match value.as_str() {
        Some(text) => parse_float(text),
        None if value.is_undefined() => return Err(Error::from(ErrorKind::UndefinedError)),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value.clone()).ok(),
    };
    Ok(parsed.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from))
}

/// `int(text, base)`, with Python's prefixes and underscores.
fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = text.trim_matches(is_space);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)]
        .into_iter()
        .find(|(prefix, own)| lower.starts_with(prefix) && (base == 0 || base == *own));
    let (digits, base) =
        prefixed.map_or((lower.as_str(), if base == 0 { 10 } else { base }), |(_, own)| (&lower[2..], own));
    let well_formed =
        digits.starts_with(|letter: char| letter.is_ascii_alphanumeric()) && !digits.ends_with('_');
    if !well_formed || digits.contains("__") || !(2..=36).contains(&base) {
        return None;
    }
    let value = i128::from_str_radix(&digits.replace('_', ""), base).ok()?;
    Some(if negative { -value } else { value })
}

fn parse_float(text: &str) -> Option<f64> {
    text.trim_matches(is_space).parse().ok()
}

fn truncated(number: f64) -> Option<i128> {
    number.is_finite().then_some(number as i128)
}

/// An integer, or a boolean as 0 or 1.
pub(super) fn integer(value: &Value) -> Option<i128> {
    is_integer(value).then(|| i128::try_from(value.clone()).ok())?
}

fn is_integer(value: &Value) -> bool {
    value.is_integer() || value.kind() == ValueKind::Bool
}

/// Converts an integer to a template value.
pub(super) fn number(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| Value::from(number), Value::from)
}
