//! Python methods of texts, mappings and lists that chat templates may call.

mod letters;
pub(super) mod split;
pub(super) mod text;

use super::arguments::{Arguments, integer};
use super::fault::{Fault, Outcome, invalid};
use super::meter::{Meter, STEP};
use super::method_names::MUTATING;
use super::value::{Key, ListKind, Map, Value};

/// Calls a method.
pub(super) fn call(value: &Value, name: &str, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    meter.spend(STEP)?;
    if MUTATING.contains(&name) {
        return Err(invalid(format!("{name} is not allowed: values cannot be changed in chat templates")));
    }
    match value {
        Value::Text(_) => text::call(value, name, arguments, meter),
        Value::Map(map) => mapping(value, map, name, arguments, meter),
        Value::List(list) => {
            let items = list.items();
            match name {
                "copy" => arguments.bind([]).map(|[]| value.clone()),
                "count" => {
                    let [item] = arguments.require(["value"])?;
                    let mut count = 0;
                    for other in items {
                        count += i128::from(other.equals(&item, meter)?);
                    }
                    Ok(Value::Int(count))
                }
                "index" => {
                    let [item] = arguments.require(["value"])?;
                    for (index, other) in items.iter().enumerate() {
                        if other.equals(&item, meter)? {
                            return Ok(Value::Int(index as i128));
                        }
                    }
                    Err(invalid("value is not in the list"))
                }
                _ => Err(missing(value, name)),
            }
        }
        _ => Err(missing(value, name)),
    }
}

fn missing(value: &Value, name: &str) -> Fault {
    invalid(format!("a value of type {} has no method {name}", value.type_name()))
}

fn mapping(value: &Value, map: &Map, name: &str, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    if name == "get" {
        let [key, default] = arguments.bind(["key", "default"])?;
        let key = Key::new(&key.unwrap_or(Value::None))?;
        meter.spend(key.size())?;
        return Ok(map.entries().get(&key).cloned().or(default).unwrap_or(Value::None));
    }
    let [] = arguments.bind([])?;
    if name == "copy" {
        return Ok(value.clone());
    }
    meter.check_memory(map.entries().len() * size_of::<Value>())?;
    let keys = map.entries().keys().map(|key| key.value().clone());
    match name {
        "keys" => Value::list_of(meter, keys.collect(), ListKind::View("dict_keys")),
        "values" => {
            Value::list_of(meter, map.entries().values().cloned().collect(), ListKind::View("dict_values"))
        }
        "items" => {
            let pair = |(key, value): (Value, &Value)| Value::tuple(meter, vec![key, value.clone()]);
            let pairs = keys.zip(map.entries().values()).map(pair).collect::<Outcome<_>>()?;
            Value::list_of(meter, pairs, ListKind::View("dict_items"))
        }
        _ => Err(missing(value, name)),
    }
}

/// Returns the `start` and `end` of a search as positions from 0 to `length`.
fn range(start: Option<&Value>, end: Option<&Value>, length: usize) -> Outcome<(usize, usize)> {
    let length = length as i64;
    let resolve = |given: Option<&Value>, default: i64| {
        let index = integer(given, default)?;
        Ok::<_, Fault>(
            if index < 0 { index.saturating_add(length).max(0) } else { index.min(length) } as usize
        )
    };
    Ok((resolve(start, 0)?, resolve(end, length)?))
}
