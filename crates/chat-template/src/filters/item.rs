//! Helpers for filters: attributes, lengths, and texts in lower case.

use super::super::access::item;
use super::super::arguments::Arguments;
use super::super::fault::{Outcome, invalid};
use super::super::meter::Meter;
use super::super::methods;
use super::super::value::Value;

/// `len(value)`
pub(super) fn length(value: &Value, meter: &Meter) -> Outcome<usize> {
    let found = match value {
        Value::Undefined(_) => Some(0),
        Value::Text(_) => {
            let text = value.as_text().unwrap_or_default();
            meter.spend(text.len())?;
            Some(text.chars().count())
        }
        Value::List(list) => list.length(),
        Value::Map(map) => Some(map.entries().len()),
        _ => None,
    };
    found.ok_or_else(|| invalid(format!("a value of type {} has no length", value.type_name())))
}

/// Returns an attribute by its path, such as `function.name` or `0`.
pub(super) fn attribute_of(value: &Value, path: &Value, meter: &Meter) -> Outcome<Value> {
    let Some(path) = path.as_text() else { return item(value, path, meter) };
    let mut value = value.clone();
    for name in path.split('.') {
        let key = match name.parse() {
            Ok(index) => Value::Int(index),
            Err(_) => Value::text(meter, name)?,
        };
        value = item(&value, &key, meter)?;
    }
    Ok(value)
}

/// Returns a text in lower case, and any other value unchanged.
pub(super) fn ignoring_case(value: Value, meter: &Meter) -> Outcome<Value> {
    if value.as_text().is_some() {
        methods::call(&value, "lower", Arguments::default(), meter)
    } else {
        Ok(value)
    }
}
