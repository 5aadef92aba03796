//! Attributes, items and slices of values.

use std::sync::Arc;

use super::fault::{Outcome, invalid};
use super::meter::{Meter, STEP};
use super::method_names;
use super::value::{Key, ListKind, Object, Value};

/// A method that was looked up but not called.
pub(super) struct Bound {
    pub(super) of: Value,
    pub(super) name: Arc<str>,
}

impl Object for Bound {
    fn label(&self) -> String {
        format!("<built-in method {} of {} object>", self.name, self.of.type_name())
    }

    fn depth(&self) -> u16 {
        1 + self.of.depth()
    }
}

/// Evaluates `value.name`: an attribute or method, else an item. `path` is the expression for error messages.
pub(super) fn attribute(value: &Value, name: &Arc<str>, path: &Arc<str>, meter: &Meter) -> Outcome<Value> {
    let found = match value {
        Value::Undefined(_) => {
            let name = value.undefined_name().unwrap_or_default();
            return Err(invalid(format!("`{name}` is undefined")));
        }
        _ if method_names::has_method(value, name) => {
            return Value::object(Bound { of: value.clone(), name: Arc::clone(name) });
        }
        Value::Map(map) => {
            meter.spend(STEP + name.len())?;
            map.get(name).cloned()
        }
        Value::Object(object) => object.attribute(meter, name)?,
        Value::List(list) if list.kind == ListKind::Group => match &**name {
            "grouper" => list.items().first().cloned(),
            "list" => list.items().last().cloned(),
            _ => None,
        },
        _ => None,
    };
    Ok(found.unwrap_or_else(|| Value::Undefined(Some(Arc::clone(path)))))
}

/// Evaluates `value[key]`: an item, else an attribute.
pub(super) fn item(value: &Value, key: &Value, meter: &Meter) -> Outcome<Value> {
    let at = |length: usize| {
        let index = key.as_int()?;
        usize::try_from(if index < 0 { index + length as i128 } else { index }).ok()
    };
    let found = match value {
        Value::Undefined(_) => {
            let name = value.undefined_name().unwrap_or_default();
            return Err(invalid(format!("`{name}` is undefined")));
        }
        Value::Map(map) => match Key::new(key) {
            Ok(key) => {
                meter.spend(key.size())?;
                map.entries().get(&key).cloned()
            }
            Err(_) => None,
        },
        Value::List(list) if list.is_sequence() => {
            at(list.items().len()).and_then(|index| list.items().get(index)).cloned()
        }
        Value::Text(text) if key.as_int().is_some() => {
            let letters = value.as_text().unwrap_or_default();
            meter.spend(letters.len())?;
            let found = at(letters.chars().count()).and_then(|index| letters.chars().nth(index));
            found.map(|letter| Value::marked(meter, letter, text.safe)).transpose()?
        }
        _ => None,
    };
    match (found, key.as_text()) {
        (Some(found), _) => Ok(found),
        (None, Some(name)) if name.len() < 100 => {
            let name: Arc<str> = name.into();
            if matches!(value, Value::Map(_)) && !method_names::has_method(value, &name) {
                return Ok(Value::Undefined(Some(name)));
            }
            attribute(value, &name, &name, meter)
        }
        _ => Ok(Value::Undefined(None)),
    }
}

/// Evaluates `value[start:stop:step]`.
pub(super) fn slice(value: &Value, bounds: &[Value; 3], meter: &Meter) -> Outcome<Value> {
    let index = |bound: &Value| match bound {
        Value::None => Outcome::Ok(None),
        other => {
            let index = other.as_int().ok_or_else(|| invalid("a bound of a slice is not an integer"))?;
            Ok(Some(index.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64))
        }
    };
    let (start, stop, stride) = (index(&bounds[0])?, index(&bounds[1])?, index(&bounds[2])?.unwrap_or(1));
    if stride == 0 {
        return Err(invalid("slice step cannot be zero"));
    }
    match value {
        Value::Text(text) => {
            let letters = value.as_text().unwrap_or_default();
            if letters.is_ascii() {
                meter.check_memory(letters.len())?;
                let places = slice_indices(letters.len(), start, stop, stride);
                let taken: String = places
                    .filter_map(|at| letters.as_bytes().get(at))
                    .map(|byte| char::from(*byte))
                    .collect();
                return Value::marked(meter, taken, text.safe);
            }
            meter.check_memory(letters.len() * (1 + size_of::<char>()))?;
            let letters: Vec<char> = letters.chars().collect();
            let taken: String =
                slice_indices(letters.len(), start, stop, stride).filter_map(|at| letters.get(at)).collect();
            Value::marked(meter, taken, text.safe)
        }
        Value::List(list) if list.is_sequence() => {
            meter.check_memory(size_of_val(list.items()))?;
            let places = slice_indices(list.items().len(), start, stop, stride);
            let taken = places.filter_map(|at| list.items().get(at)).cloned().collect();
            let kind = if list.kind == ListKind::Tuple { ListKind::Tuple } else { ListKind::List };
            Value::list_of(meter, taken, kind)
        }
        other => match other.undefined_name() {
            Some(name) => Err(invalid(format!("`{name}` is undefined"))),
            None => Err(invalid(format!("a value of type {} cannot be sliced", other.type_name()))),
        },
    }
}

/// Returns the indices of a slice of a sequence.
fn slice_indices(
    length: usize,
    start: Option<i64>,
    stop: Option<i64>,
    stride: i64,
) -> impl Iterator<Item = usize> {
    let length = length as i64;
    // The bounds of the iteration: one past the last item forwards, one before the first backwards.
    let (lowest, highest) = if stride > 0 { (0, length) } else { (-1, length - 1) };
    let resolve = |given: Option<i64>, default: i64| match given {
        Some(index) => if index < 0 { index.saturating_add(length) } else { index }.clamp(lowest, highest),
        None => default,
    };
    let (first, last) = if stride > 0 { (lowest, highest) } else { (highest, lowest) };
    let (start, stop) = (resolve(start, first), resolve(stop, last));
    std::iter::successors(Some(start), move |at| at.checked_add(stride))
        .take_while(move |at| if stride > 0 { *at < stop } else { *at > stop })
        .map(|at| at as usize)
}
