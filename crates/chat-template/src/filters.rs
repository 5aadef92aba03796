//! Jinja's filters, and transformers' `tojson`.

mod item;
mod select;
mod sequence;
mod sort;
mod text;

use super::access::item;
use super::arguments::{Arguments, flag, integer};
use super::fault::{Outcome, invalid};
use super::format::percent;
use super::meter::{Buffer, Meter, STEP};
use super::value::Value;
use super::{json, markup, numbers, python};

/// Applies a filter.
pub(super) fn apply(name: &str, value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    meter.spend(STEP)?;
    match name {
        "default" | "d" => {
            let [default, boolean] = arguments.bind(["default_value", "boolean"])?;
            let replaced = matches!(value, Value::Undefined(_)) || flag(boolean.as_ref()) && !value.is_true();
            let default = default.map_or_else(|| Value::text(meter, ""), Ok);
            if replaced { default } else { Ok(value.clone()) }
        }
        "tojson" => to_json(value, arguments, meter),
        "int" => numbers::int(value, arguments, meter),
        "float" => numbers::float(value, arguments, meter),
        "abs" => {
            let [] = arguments.bind([])?;
            match (value.as_int(), value.as_float()) {
                _ if matches!(value, Value::Long(_)) => Err(invalid("a number is too large")),
                (Some(number), _) => {
                    number.checked_abs().map(Value::Int).ok_or_else(|| invalid("a number is too large"))
                }
                (None, Some(number)) => Ok(Value::Float(number.abs())),
                _ => Err(invalid(format!("abs takes a number, not {}", value.type_name()))),
            }
        }
        "round" => round(value, arguments),
        "attr" => {
            let [name] = arguments.require(["name"])?;
            match value {
                Value::Object(object) => {
                    let found = object.attribute(meter, name.as_text().unwrap_or_default())?;
                    Ok(found.unwrap_or(Value::Undefined(None)))
                }
                _ => Ok(Value::Undefined(None)),
            }
        }
        "string" => python::str(value, meter),
        "pprint" => {
            let mut buffer = Buffer::new(meter);
            python::write_repr(&mut buffer, value)?;
            Value::buffered(buffer, false)
        }
        "safe" => {
            let text = python::str(value, meter)?;
            Value::marked(meter, text.as_text().unwrap_or_default(), true)
        }
        "escape" | "e" => markup::escape(value, meter),
        "forceescape" => {
            let text = python::str(value, meter)?;
            markup::escape(&Value::text(meter, text.as_text().unwrap_or_default())?, meter)
        }
        "format" => {
            let values = if arguments.named.is_empty() {
                Value::tuple(meter, arguments.positional)?
            } else {
                let Value::Map(map) = super::value::named(arguments.named, meter)? else {
                    return Ok(Value::None);
                };
                Value::Map(map)
            };
            percent(&python::str(value, meter)?, &values, meter)
        }
        "map" | "select" | "reject" | "selectattr" | "rejectattr" => {
            select::apply(name, value, arguments, meter)
        }
        "sort" | "dictsort" | "unique" | "min" | "max" | "groupby" => {
            sort::apply(name, value, arguments, meter)
        }
        _ => match sequence::apply(name, value, arguments, meter)? {
            Ok(result) => Ok(result),
            Err(arguments) => text::apply(name, value, arguments, meter),
        },
    }
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, as defined by transformers.
fn to_json(value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [ascii, indent, separators, sort_keys] =
        arguments.bind(["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = indent.map(|value| match value.as_text() {
        Some(text) => Ok(text.to_owned()),
        None => integer(Some(&value), 0).map(|count| " ".repeat(count.clamp(0, 1000) as usize)),
    });
    let indent = indent.transpose()?;
    let separator = |index: i128, default: &str| match &separators {
        Some(pair) => {
            let text = item(pair, &Value::Int(index), meter)?;
            text.as_text().map(str::to_owned).ok_or_else(|| invalid("separators must be two strings"))
        }
        None => Ok(default.to_owned()),
    };
    let style = json::Style {
        ascii: flag(ascii.as_ref()),
        item_separator: separator(0, if indent.is_some() { "," } else { ", " })?,
        key_separator: separator(1, ": ")?,
        indent,
        sort_keys: flag(sort_keys.as_ref()),
    };
    json::dump(value, &style, meter)
}

/// `round(value, precision=0, method='common')`
fn round(value: &Value, arguments: Arguments) -> Outcome<Value> {
    let [precision, method] = arguments.bind(["precision", "method"])?;
    let precision = integer(precision.as_ref(), 0)?.clamp(-400, 400) as i32;
    let number = value.as_float().ok_or_else(|| match value.undefined_name() {
        Some(name) => invalid(format!("`{name}` is undefined")),
        None => invalid(format!("round takes a number, not {}", value.type_name())),
    })?;
    let factor = 10f64.powi(precision);
    Ok(match method.as_ref().and_then(Value::as_text).unwrap_or("common") {
        "ceil" => Value::Float((number * factor).ceil() / factor),
        "floor" => Value::Float((number * factor).floor() / factor),
        "common" => match value.as_int() {
            Some(whole) if precision >= 0 => Value::Int(whole),
            Some(_) => Value::Int(((number * factor).round_ties_even() / factor) as i128),
            None if precision < 0 => Value::Float((number * factor).round_ties_even() / factor),
            None => Value::Float(format!("{number:.*}", precision as usize).parse().unwrap_or(number)),
        },
        other => {
            return Err(invalid(format!("{other:?} is not a rounding method; use common, ceil or floor")));
        }
    })
}
