//! Filters that apply other filters or tests to each item.

use super::super::arguments::Arguments;
use super::super::checks::check;
use super::super::fault::{Outcome, invalid};
use super::super::meter::Meter;
use super::super::value::Value;
use super::apply as apply_filter;
use super::item::attribute_of;

/// Applies `map`, `select`, `reject`, `selectattr` or `rejectattr`.
pub(super) fn apply(name: &str, value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    // Jinja skips false values here.
    let items = if value.is_true() { value.clone() } else { Value::Undefined(None) }.iterate(meter)?;
    if name == "map" {
        return map(items.items(), arguments, meter);
    }
    let wanted = name.starts_with("select");
    let mut given = arguments.positional.into_iter();
    let attribute = if name.ends_with("attr") {
        Some(given.next().ok_or_else(|| invalid(format!("{name} takes the name of an attribute")))?)
    } else {
        None
    };
    let test = given.next();
    let test = test.as_ref().map(|test| test.as_text().ok_or_else(|| invalid("the test must be a name")));
    let (test, rest) = (test.transpose()?, given.collect::<Vec<_>>());
    let mut chosen = Vec::new();
    for item in items.items() {
        let subject =
            attribute.as_ref().map_or_else(|| Ok(item.clone()), |path| attribute_of(item, path, meter))?;
        let holds = match test {
            Some(test) => {
                let arguments = Arguments { positional: rest.clone(), named: arguments.named.clone() };
                check(test, &subject, arguments, meter)?
            }
            None => subject.is_true(),
        };
        if holds == wanted {
            chosen.push(item.clone());
        }
    }
    Value::generator(meter, chosen)
}

/// `map(filter, ...)` and `map(attribute=..., default=...)`
fn map(items: &[Value], arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let mut mapped = Vec::new();
    if arguments.positional.is_empty() {
        let [attribute, default] = arguments.bind(["attribute", "default"])?;
        let attribute = attribute.ok_or_else(|| invalid("map takes a filter or an attribute"))?;
        for item in items {
            let found = attribute_of(item, &attribute, meter)?;
            mapped.push(match (&found, &default) {
                (Value::Undefined(_), Some(default)) => default.clone(),
                _ => found,
            });
        }
        return Value::generator(meter, mapped);
    }
    let mut given = arguments.positional.into_iter();
    let filter = given.next().unwrap_or(Value::None);
    let filter = filter.as_text().ok_or_else(|| invalid("the filter must be a name"))?;
    if filter == "map" {
        return Err(invalid("map cannot be applied by map"));
    }
    let rest: Vec<Value> = given.collect();
    for item in items {
        let arguments = Arguments { positional: rest.clone(), named: arguments.named.clone() };
        mapped.push(apply_filter(filter, item, arguments, meter)?);
    }
    Value::generator(meter, mapped)
}
