//! Filters on whole sequences.

use super::super::arguments::{Arguments, integer};
use super::super::fault::{Outcome, invalid};
use super::super::meter::{Buffer, Meter};
use super::super::methods;
use super::super::operators::binary;
use super::super::python;
use super::super::value::{ListKind, Value};
use super::item::{attribute_of, length};

/// Applies a filter, or returns the arguments if `name` is not one of these filters.
pub(super) fn apply(
    name: &str,
    value: &Value,
    arguments: Arguments,
    meter: &Meter,
) -> Outcome<Result<Value, Arguments>> {
    Ok(Ok(match name {
        "length" | "count" => {
            let [] = arguments.bind([])?;
            Value::Int(length(value, meter)? as i128)
        }
        "first" | "last" => {
            let [] = arguments.bind([])?;
            let list = value.iterate(meter)?;
            let found = if name == "first" { list.items().first() } else { list.items().last() };
            found.cloned().unwrap_or(Value::Undefined(None))
        }
        "list" => {
            let [] = arguments.bind([])?;
            let items = value.iterate(meter)?;
            meter.check_memory(size_of_val(items.items()))?;
            Value::list(meter, items.items().to_vec())?
        }
        "join" => join(value, arguments, meter)?,
        "reverse" => {
            let [] = arguments.bind([])?;
            reverse(value, meter)?
        }
        "items" => match value {
            Value::Undefined(_) => Value::generator(meter, Vec::new())?,
            Value::Map(_) => {
                let pairs = methods::call(value, "items", arguments, meter)?;
                Value::generator(meter, pairs.iterate(meter)?.items().to_vec())?
            }
            _ => return Err(invalid("can only get item pairs from a mapping")),
        },
        "sum" => {
            let [attribute, start] = arguments.bind(["attribute", "start"])?;
            let mut sum = start.unwrap_or(Value::Int(0));
            for item in value.iterate(meter)?.items() {
                let item = attribute
                    .as_ref()
                    .map_or_else(|| Ok(item.clone()), |path| attribute_of(item, path, meter))?;
                sum = binary("+", &sum, &item, meter)?;
            }
            sum
        }
        "batch" => batch(value, arguments, meter)?,
        "slice" => slice(value, arguments, meter)?,
        _ => return Ok(Err(arguments)),
    }))
}

/// `join(value, d='', attribute=None)`
fn join(value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [separator, attribute] = arguments.bind(["d", "attribute"])?;
    let separator =
        separator.map_or_else(|| Value::text(meter, ""), |separator| python::str(&separator, meter))?;
    let mut joined = Buffer::new(meter);
    for (index, item) in value.iterate(meter)?.items().iter().enumerate() {
        joined.push(if index == 0 { "" } else { separator.as_text().unwrap_or_default() })?;
        match &attribute {
            Some(path) => python::write_str(&mut joined, &attribute_of(item, path, meter)?)?,
            None => python::write_str(&mut joined, item)?,
        }
    }
    Value::buffered(joined, false)
}

fn reverse(value: &Value, meter: &Meter) -> Outcome<Value> {
    if let Some(text) = value.as_text() {
        meter.check_memory(text.len())?;
        return Value::marked(meter, text.chars().rev().collect::<String>(), value.is_safe());
    }
    let items = value.iterate(meter)?;
    meter.check_memory(size_of_val(items.items()))?;
    Value::generator(meter, items.items().iter().rev().cloned().collect())
}

/// `batch(value, linecount, fill_with=None)`
fn batch(value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [count, fill] = arguments.bind(["linecount", "fill_with"])?;
    let count = usize::try_from(integer(count.as_ref(), 0)?).ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| invalid("batch takes the number of items in a row"))?;
    let items = value.iterate(meter)?;
    let mut rows = Vec::new();
    for row in items.items().chunks(count) {
        let mut row = row.to_vec();
        if let Some(fill) = fill.as_ref().filter(|_| row.len() < count) {
            meter.check_memory(count.saturating_mul(size_of::<Value>()))?;
            row.resize(count, fill.clone());
        }
        rows.push(Value::list(meter, row)?);
    }
    Value::generator(meter, rows)
}

/// `slice(value, slices, fill_with=None)`
fn slice(value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [count, fill] = arguments.bind(["slices", "fill_with"])?;
    let count = usize::try_from(integer(count.as_ref(), 0)?).ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| invalid("slice takes the number of columns"))?;
    let items = value.iterate(meter)?;
    let items = items.items();
    let (each, longer) = (items.len() / count, items.len() % count);
    let (mut columns, mut start) = (Vec::new(), 0);
    for column in 0..count {
        let end = start + each + usize::from(column < longer);
        let mut taken = items[start..end].to_vec();
        taken.extend(fill.clone().filter(|_| column >= longer));
        columns.push(Value::list_of(meter, taken, ListKind::List)?);
        start = end;
    }
    Value::generator(meter, columns)
}
