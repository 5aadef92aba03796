//! Jinja's tests, which follow `is`.

use super::arguments::Arguments;
use super::fault::{Outcome, invalid};
use super::meter::{Meter, STEP};
use super::operators::compare;
use super::python;
use super::value::Value;

/// The filter names for the test `is filter`.
const FILTERS: [&str; 47] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "wordcount",
];

/// The test names for the test `is test`.
const TESTS: [&str; 38] = [
    "defined",
    "undefined",
    "none",
    "boolean",
    "true",
    "false",
    "integer",
    "float",
    "number",
    "string",
    "mapping",
    "iterable",
    "sequence",
    "callable",
    "escaped",
    "odd",
    "even",
    "lower",
    "upper",
    "filter",
    "test",
    "divisibleby",
    "sameas",
    "in",
    "eq",
    "equalto",
    "==",
    "ne",
    "!=",
    "lt",
    "lessthan",
    "<",
    "le",
    "<=",
    "gt",
    "greaterthan",
    ">",
    "ge",
];

/// Returns the result of a test.
pub(super) fn check(name: &str, value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<bool> {
    meter.spend(STEP)?;
    let operator = match name {
        "eq" | "equalto" | "==" => "==",
        "ne" | "!=" => "!=",
        "lt" | "lessthan" | "<" => "<",
        "le" | "<=" => "<=",
        "gt" | "greaterthan" | ">" => ">",
        "ge" | ">=" => ">=",
        "in" => "in",
        "divisibleby" | "sameas" => "",
        _ => {
            let [] = arguments.bind([])?;
            return is(name, value, meter);
        }
    };
    let mut given = arguments.positional;
    let other = given
        .pop()
        .filter(|_| given.is_empty())
        .ok_or_else(|| invalid(format!("the test {name} takes a value")))?;
    if name == "sameas" {
        return Ok(same(value, &other));
    }
    if name == "divisibleby" {
        let (Some(number), Some(divisor)) = (value.as_int(), other.as_int().filter(|divisor| *divisor != 0))
        else {
            return Err(invalid("divisibleby takes integers, and the divisor must not be 0"));
        };
        return Ok(number.checked_rem(divisor).unwrap_or(0) == 0);
    }
    compare(operator, value, &other, meter)
}

/// Returns the result of a test without arguments.
fn is(name: &str, value: &Value, meter: &Meter) -> Outcome<bool> {
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined(_)),
        "undefined" => matches!(value, Value::Undefined(_)),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_) | Value::Long(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Map(_)),
        "iterable" => {
            matches!(value, Value::Undefined(_) | Value::Text(_) | Value::List(_) | Value::Map(_))
        }
        "sequence" => match value {
            Value::List(list) => list.is_sequence(),
            other => matches!(other, Value::Undefined(_) | Value::Text(_) | Value::Map(_)),
        },
        "callable" => matches!(value, Value::Object(object) if object.is_callable()),
        "escaped" => value.is_safe(),
        "odd" | "even" => {
            let number = value.as_int().ok_or_else(|| invalid(format!("{name} takes an integer")))?;
            (number % 2 == 0) == (name == "even")
        }
        "lower" | "upper" => {
            let text = python::str(value, meter)?;
            let text = text.as_text().unwrap_or_default();
            meter.spend(text.len())?;
            let (lower, upper) = (text.chars().any(char::is_lowercase), text.chars().any(char::is_uppercase));
            if name == "lower" { lower && !upper } else { upper && !lower }
        }
        "filter" => value.as_text().is_some_and(|name| FILTERS.contains(&name)),
        "test" => value.as_text().is_some_and(|name| TESTS.contains(&name)),
        _ => return Err(invalid(format!("there is no test {name}"))),
    })
}

/// Python's `is`, which distinguishes lists with equal items.
fn same(one: &Value, other: &Value) -> bool {
    use std::rc::Rc;
    match (one, other) {
        (Value::List(one), Value::List(other)) => Rc::ptr_eq(one, other),
        (Value::Map(one), Value::Map(other)) => Rc::ptr_eq(one, other),
        (Value::Object(one), Value::Object(other)) => Rc::ptr_eq(one, other),
        (Value::Text(one), Value::Text(other)) => Rc::ptr_eq(one, other) || one.is_short_and_equal(other),
        (Value::Int(one), Value::Int(other)) => one == other,
        (Value::Float(one), Value::Float(other)) => one.to_bits() == other.to_bits(),
        (Value::Bool(one), Value::Bool(other)) => one == other,
        (Value::None, Value::None) => true,
        _ => false,
    }
}
