//! Filters that compare items.

use std::cmp::Ordering;
use std::collections::HashSet;

use super::super::arguments::{Arguments, flag};
use super::super::fault::{Outcome, invalid};
use super::super::meter::{Meter, STEP};
use super::super::methods;
use super::super::operators::order;
use super::super::value::{Key, ListKind, Value};
use super::item::{attribute_of, ignoring_case};

/// An item, preceded by its sort keys.
type Keyed = (Vec<Value>, Value);

/// Applies a filter that compares items.
pub(super) fn apply(name: &str, value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    match name {
        "sort" => sort(value, arguments, meter),
        "dictsort" => dict_sort(value, arguments, meter),
        "unique" => unique(value, arguments, meter),
        "groupby" => group_by(value, arguments, meter),
        _ => extreme(value, name == "max", arguments, meter),
    }
}

/// `sort(value, reverse=False, case_sensitive=False, attribute=None)`
fn sort(value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [reverse, case_sensitive, attribute] = arguments.bind(["reverse", "case_sensitive", "attribute"])?;
    let paths = match attribute.as_ref().map(|path| (path, path.as_text())) {
        Some((_, Some(paths))) => {
            paths.split(',').map(|path| Value::text(meter, path)).collect::<Outcome<Vec<_>>>()?
        }
        Some((path, None)) => vec![path.clone()],
        None => Vec::new(),
    };
    let mut items = Vec::new();
    for item in value.iterate(meter)?.items() {
        let keys = match paths.as_slice() {
            [] => vec![item.clone()],
            paths => paths.iter().map(|path| attribute_of(item, path, meter)).collect::<Outcome<_>>()?,
        };
        items.push((cased(keys, case_sensitive.as_ref(), meter)?, item.clone()));
    }
    sorted(items, flag(reverse.as_ref()), meter)
}

/// `dictsort(value, case_sensitive=False, by='key', reverse=False)`
fn dict_sort(value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [case_sensitive, by, reverse] = arguments.bind(["case_sensitive", "by", "reverse"])?;
    let part = match by.as_ref().map_or(Some("key"), Value::as_text) {
        Some("key") => 0,
        Some("value") => 1,
        _ => return Err(invalid("you can only sort by either 'key' or 'value'")),
    };
    if !matches!(value, Value::Map(_)) {
        return Err(invalid(format!("dictsort takes a mapping, not {}", value.type_name())));
    }
    let pairs = methods::call(value, "items", Arguments::default(), meter)?;
    let mut items = Vec::new();
    for pair in pairs.iterate(meter)?.items() {
        let key = attribute_of(pair, &Value::Int(part), meter)?;
        items.push((cased(vec![key], case_sensitive.as_ref(), meter)?, pair.clone()));
    }
    sorted(items, flag(reverse.as_ref()), meter)
}

/// Converts keys to lower case unless the comparison is case-sensitive.
fn cased(keys: Vec<Value>, case_sensitive: Option<&Value>, meter: &Meter) -> Outcome<Vec<Value>> {
    if flag(case_sensitive) {
        return Ok(keys);
    }
    keys.into_iter().map(|key| ignoring_case(key, meter)).collect()
}

/// Sorts by keys. The order is stable, also in reverse, as in Python.
fn sorted(items: Vec<Keyed>, reverse: bool, meter: &Meter) -> Outcome<Value> {
    let _held = meter.reserve(items.len() * 8 * size_of::<Value>())?;
    let precedes = |one: &Keyed, other: &Keyed| {
        let order = compare(&one.0, &other.0, meter)?;
        Ok(if reverse { order == Ordering::Greater } else { order == Ordering::Less })
    };
    let sorted = merge_sort(items, &precedes)?;
    Value::list(meter, sorted.into_iter().map(|(_, item)| item).collect())
}

/// Sorts stably with a comparison that may fail. `slice::sort_by` may panic on an inconsistent order, which NaN causes.
fn merge_sort(
    mut items: Vec<Keyed>,
    precedes: &impl Fn(&Keyed, &Keyed) -> Outcome<bool>,
) -> Outcome<Vec<Keyed>> {
    if items.len() < 2 {
        return Ok(items);
    }
    let right = items.split_off(items.len() / 2);
    let left = merge_sort(items, precedes)?;
    let right = merge_sort(right, precedes)?;
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(one), Some(other)) = (left.peek(), right.peek()) {
        let next = if precedes(other, one)? { right.next() } else { left.next() };
        merged.extend(next);
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}

fn compare(left: &[Value], right: &[Value], meter: &Meter) -> Outcome<Ordering> {
    for (left, right) in left.iter().zip(right) {
        if !left.equals(right, meter)? {
            return Ok(order(left, right, meter)?.unwrap_or(Ordering::Equal));
        }
    }
    Ok(Ordering::Equal)
}

/// `unique(value, case_sensitive=False, attribute=None)`
fn unique(value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [case_sensitive, attribute] = arguments.bind(["case_sensitive", "attribute"])?;
    let (mut seen, mut kept) = (HashSet::new(), Vec::new());
    let list = value.iterate(meter)?;
    let _held = meter.reserve(list.items().len() * 2 * size_of::<Value>())?;
    for item in list.items() {
        let key =
            attribute.as_ref().map_or_else(|| Ok(item.clone()), |path| attribute_of(item, path, meter))?;
        let key = if flag(case_sensitive.as_ref()) { key } else { ignoring_case(key, meter)? };
        let key = Key::new(&key)?;
        meter.spend(STEP + key.size())?;
        if seen.insert(key) {
            kept.push(item.clone());
        }
    }
    Value::generator(meter, kept)
}

/// `min` and `max(value, case_sensitive=False, attribute=None)`
fn extreme(value: &Value, greatest: bool, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [case_sensitive, attribute] = arguments.bind(["case_sensitive", "attribute"])?;
    let mut best: Option<Keyed> = None;
    for item in value.iterate(meter)?.items() {
        let key =
            attribute.as_ref().map_or_else(|| Ok(item.clone()), |path| attribute_of(item, path, meter))?;
        let key = cased(vec![key], case_sensitive.as_ref(), meter)?;
        let wins = match &best {
            Some((before, _)) => {
                compare(&key, before, meter)? == if greatest { Ordering::Greater } else { Ordering::Less }
            }
            None => true,
        };
        if wins {
            best = Some((key, item.clone()));
        }
    }
    Ok(best.map_or(Value::Undefined(None), |(_, item)| item))
}

/// `groupby(value, attribute, default=None, case_sensitive=False)`
fn group_by(value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [attribute, default, case_sensitive] = arguments.bind(["attribute", "default", "case_sensitive"])?;
    let attribute = attribute.ok_or_else(|| invalid("groupby takes an attribute"))?;
    let mut items = Vec::new();
    for item in value.iterate(meter)?.items() {
        let found = attribute_of(item, &attribute, meter)?;
        let found =
            if matches!(found, Value::Undefined(_)) { default.clone().unwrap_or(found) } else { found };
        // Store the original key along with the lower-case one, which is only compared.
        let key = Value::tuple(meter, vec![found.clone(), item.clone()])?;
        items.push((cased(vec![found], case_sensitive.as_ref(), meter)?, key));
    }
    let precedes = |one: &Keyed, other: &Keyed| Ok(compare(&one.0, &other.0, meter)? == Ordering::Less);
    let mut groups: Vec<(Vec<Value>, Value, Vec<Value>)> = Vec::new();
    for (key, pair) in merge_sort(items, &precedes)? {
        let Value::List(pair) = pair else { continue };
        let [found, item] = pair.items() else { continue };
        match groups.last_mut() {
            Some((last, _, group)) if compare(last, &key, meter)? == Ordering::Equal => {
                group.push(item.clone());
            }
            _ => groups.push((key, found.clone(), vec![item.clone()])),
        }
    }
    let group = |(_, key, items): (_, Value, Vec<Value>)| {
        Value::list_of(meter, vec![key, Value::list(meter, items)?], ListKind::Group)
    };
    Value::list(meter, groups.into_iter().map(group).collect::<Outcome<_>>()?)
}
