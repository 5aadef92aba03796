//! The filters `int` and `float`, with Python's number syntax.

use super::arguments::{Arguments, integer};
use super::fault::{Outcome, invalid};
use super::meter::Meter;
use super::python::is_space;
use super::value::Value;

/// `int(value, default=0, base=10)`
pub(super) fn int(value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [default, base] = arguments.bind(["default", "base"])?;
    let base = u32::try_from(integer(base.as_ref(), 10)?).unwrap_or(u32::MAX);
    let parsed = match value {
        Value::Long(_) => return Ok(value.clone()),
        Value::Text(_) => {
            let text = value.as_text().unwrap_or_default();
            meter.spend(text.len())?;
            parse_int(text, base).or_else(|| parse_float(text).and_then(truncated))
        }
        other => expect_defined(other)?.as_int().or_else(|| other.as_float().and_then(truncated)),
    };
    Ok(parsed.map_or_else(|| default.unwrap_or(Value::Int(0)), Value::Int))
}

/// `float(value, default=0.0)`
pub(super) fn float(value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [default] = arguments.bind(["default"])?;
    let parsed = match value {
        Value::Text(_) => {
            let text = value.as_text().unwrap_or_default();
            meter.spend(text.len())?;
            parse_float(text)
        }
        other => expect_defined(other)?.as_float(),
    };
    Ok(parsed.map_or_else(|| default.unwrap_or(Value::Float(0.0)), Value::Float))
}

fn expect_defined(value: &Value) -> Outcome<&Value> {
    match value.undefined_name() {
        Some(name) => Err(invalid(format!("`{name}` is undefined"))),
        None => Ok(value),
    }
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
