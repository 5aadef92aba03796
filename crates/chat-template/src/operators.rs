//! Python's operators.

use std::cmp::Ordering;

use super::fault::{Fault, Outcome, invalid};
use super::format::percent;
use super::markup;
use super::meter::{Buffer, Meter, STEP};
use super::python;
use super::value::{Key, ListKind, Value};

/// Applies a binary operator.
pub(super) fn binary(operator: &str, left: &Value, right: &Value, meter: &Meter) -> Outcome<Value> {
    meter.spend(STEP)?;
    match operator {
        "~" => {
            let mut buffer = Buffer::new(meter);
            python::write_str(&mut buffer, left)?;
            python::write_str(&mut buffer, right)?;
            return Value::buffered(buffer, false);
        }
        "+" => {
            if let Some(joined) = add_texts_or_lists(left, right, meter)? {
                return Ok(joined);
            }
        }
        "*" => {
            if let Some(repeated) = repeat(left, right, meter)? {
                return Ok(repeated);
            }
        }
        "%" if left.as_text().is_some() => return percent(left, right, meter),
        _ => {}
    }
    number(operator, left, right)
}

fn add_texts_or_lists(left: &Value, right: &Value, meter: &Meter) -> Outcome<Option<Value>> {
    Ok(Some(match (left, right) {
        (Value::Text(_), Value::Text(_)) => {
            let safe = left.is_safe() || right.is_safe();
            let (left, right) = (markup::entering(left, safe, meter)?, markup::entering(right, safe, meter)?);
            let mut buffer = Buffer::new(meter);
            buffer.push(left.as_text().unwrap_or_default())?;
            buffer.push(right.as_text().unwrap_or_default())?;
            Value::buffered(buffer, safe)?
        }
        (Value::List(one), Value::List(other))
            if one.kind == other.kind && matches!(one.kind, ListKind::List | ListKind::Tuple) =>
        {
            meter.check_memory((one.items().len() + other.items().len()) * size_of::<Value>())?;
            Value::list_of(meter, [one.items(), other.items()].concat(), one.kind)?
        }
        _ => return Ok(None),
    }))
}

/// Multiplies a text or list by a number.
fn repeat(left: &Value, right: &Value, meter: &Meter) -> Outcome<Option<Value>> {
    let (value, times) = match (left.as_int(), right.as_int()) {
        (None, Some(times)) => (left, times),
        (Some(times), None) => (right, times),
        _ => return Ok(None),
    };
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    Ok(Some(match value {
        Value::Text(_) => {
            let text = value.as_text().unwrap_or_default();
            meter.check_memory(text.len().saturating_mul(times))?;
            Value::marked(meter, text.repeat(times), value.is_safe())?
        }
        Value::List(list) if matches!(list.kind, ListKind::List | ListKind::Tuple) => {
            meter.check_memory(size_of_val(list.items()).saturating_mul(times))?;
            let times = if list.items().is_empty() { 0 } else { times };
            let items = std::iter::repeat_n(list.items(), times).flatten().cloned().collect();
            Value::list_of(meter, items, list.kind)?
        }
        _ => return Ok(None),
    }))
}

/// Applies an operator to numbers.
fn number(operator: &str, left: &Value, right: &Value) -> Outcome<Value> {
    let too_large = || invalid(format!("the result of {operator} is too large"));
    if let (Some(one), Some(other)) = (left.as_int(), right.as_int()) {
        let by_zero =
            other == 0 && matches!(operator, "//" | "%" | "/") || operator == "**" && one == 0 && other < 0;
        if by_zero {
            return Err(invalid("division by zero"));
        }
        return match operator {
            "+" => one.checked_add(other),
            "-" => one.checked_sub(other),
            "*" => one.checked_mul(other),
            "//" => one.checked_div_euclid(other).map(|_| floor_division(one, other)),
            "%" => Some(
                one.checked_rem(other)
                    .map_or(0, |_| one.wrapping_sub(floor_division(one, other).wrapping_mul(other))),
            ),
            "**" if other >= 0 => u32::try_from(other).ok().and_then(|power| one.checked_pow(power)),
            "**" => return Ok(Value::Float((one as f64).powf(other as f64))),
            _ => return Ok(Value::Float(one as f64 / other as f64)),
        }
        .map(Value::Int)
        .ok_or_else(too_large);
    }
    if matches!(left, Value::Long(_)) || matches!(right, Value::Long(_)) {
        return Err(invalid(format!("an operand of {operator} is too large")));
    }
    let (Some(one), Some(other)) = (left.as_float(), right.as_float()) else {
        return Err(unsupported(operator, left, right));
    };
    if other == 0.0 && matches!(operator, "/" | "//" | "%") {
        return Err(invalid("division by zero"));
    }
    let remainder = || one - (one / other).floor() * other;
    Ok(Value::Float(match operator {
        "+" => one + other,
        "-" => one - other,
        "*" => one * other,
        "/" => one / other,
        "//" => (one / other).floor(),
        "%" => {
            let exact = one % other;
            if exact.is_nan() {
                remainder()
            } else if exact != 0.0 && (exact < 0.0) != (other < 0.0) {
                exact + other
            } else {
                exact
            }
        }
        _ => one.powf(other),
    }))
}

fn floor_division(one: i128, other: i128) -> i128 {
    let quotient = one / other;
    if one % other != 0 && ((one < 0) != (other < 0)) { quotient - 1 } else { quotient }
}

fn unsupported(operator: &str, left: &Value, right: &Value) -> Fault {
    if let Some(name) = [left, right].into_iter().find_map(Value::undefined_name) {
        return invalid(format!("`{name}` is undefined"));
    }
    let (left, right) = (left.type_name(), right.type_name());
    invalid(format!("tried to use {operator} operator on unsupported types {left} and {right}"))
}

/// `-value` and `+value`.
pub(super) fn signed(operator: &str, value: &Value) -> Outcome<Value> {
    match (value.as_int(), value) {
        (Some(number), _) if operator == "+" => Ok(Value::Int(number)),
        (Some(number), _) => {
            number.checked_neg().map(Value::Int).ok_or_else(|| invalid("a number is too large"))
        }
        (None, Value::Long(_)) => Err(invalid("a number is too large")),
        (None, Value::Float(number)) => Ok(Value::Float(if operator == "+" { *number } else { -number })),
        (None, other) => match other.undefined_name() {
            Some(name) => Err(invalid(format!("`{name}` is undefined"))),
            None => Err(invalid(format!("a value of type {} has no sign", other.type_name()))),
        },
    }
}

/// Evaluates a comparison.
pub(super) fn compare(operator: &str, left: &Value, right: &Value, meter: &Meter) -> Outcome<bool> {
    Ok(match operator {
        "==" => left.equals(right, meter)?,
        "!=" => !left.equals(right, meter)?,
        "in" => contains(right, left, meter)?,
        "not in" => !contains(right, left, meter)?,
        _ => {
            let order = order(left, right, meter)?;
            match operator {
                "<" => order == Some(Ordering::Less),
                ">" => order == Some(Ordering::Greater),
                "<=" => order.is_some_and(Ordering::is_le),
                _ => order.is_some_and(Ordering::is_ge),
            }
        }
    })
}

/// Returns the order of two values as in Python: only two numbers, two texts or two lists can be compared. NaN has no
/// order.
pub(super) fn order(left: &Value, right: &Value, meter: &Meter) -> Outcome<Option<Ordering>> {
    meter.spend(STEP)?;
    match (left, right) {
        (Value::Text(_), Value::Text(_)) => {
            let (left, right) = (left.as_text().unwrap_or_default(), right.as_text().unwrap_or_default());
            meter.spend(left.len().min(right.len()))?;
            Ok(Some(left.cmp(right)))
        }
        (Value::List(one), Value::List(other)) if one.is_sequence() && one.kind == other.kind => {
            for (one, other) in one.items().iter().zip(other.items()) {
                if !one.equals(other, meter)? {
                    return order(one, other, meter);
                }
            }
            Ok(Some(one.items().len().cmp(&other.items().len())))
        }
        _ => match (left.as_int().zip(right.as_int()), left.as_float().zip(right.as_float())) {
            (Some((left, right)), _) => Ok(Some(left.cmp(&right))),
            (None, Some((left, right))) => Ok(left.partial_cmp(&right)),
            (None, None) => Err(unsupported("<", left, right)),
        },
    }
}

/// Evaluates `item in container`.
pub(super) fn contains(container: &Value, item: &Value, meter: &Meter) -> Outcome<bool> {
    match container {
        Value::Text(_) => {
            let text = container.as_text().unwrap_or_default();
            let part = item.as_text().ok_or_else(|| {
                invalid(format!("'in <string>' requires string as left operand, not {}", item.type_name()))
            })?;
            meter.spend(text.len() + part.len())?;
            Ok(text.contains(part))
        }
        Value::Map(map) => {
            let key = Key::new(item)?;
            meter.spend(key.size())?;
            Ok(map.entries().contains_key(&key))
        }
        Value::List(list) => {
            for other in list.items() {
                if other.equals(item, meter)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Undefined(_) => Ok(false),
        other => Err(invalid(format!("argument of type '{}' is not iterable", other.type_name()))),
    }
}
