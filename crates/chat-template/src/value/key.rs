//! Keys of mappings.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use indexmap::Equivalent;

use super::super::fault::{Outcome, invalid};
use super::super::meter::STEP;
use super::{ListKind, Value};

/// A key of a mapping: a scalar, or a short tuple of scalars.
#[derive(Clone)]
pub(in super::super) struct Key(Value);

impl Key {
    /// Returns a value as a key. Lists and mappings are not hashable.
    pub(in super::super) fn new(value: &Value) -> Outcome<Self> {
        let is_scalar = |value: &Value| !matches!(value, Value::List(_) | Value::Map(_));
        let fits = match value {
            Value::List(list) => {
                list.kind == ListKind::Tuple && list.items.len() < 32 && list.items.iter().all(is_scalar)
            }
            other => is_scalar(other),
        };
        if fits {
            Ok(Self(value.clone()))
        } else {
            Err(invalid(format!("unhashable type: {}", value.type_name())))
        }
    }

    pub(in super::super) fn value(&self) -> &Value {
        &self.0
    }

    /// Returns the number of bytes that a lookup reads.
    pub(in super::super) fn size(&self) -> usize {
        let size = |value: &Value| STEP + value.as_text().map_or(0, str::len);
        match &self.0 {
            Value::List(list) => list.items.iter().map(size).sum(),
            other => size(other),
        }
    }
}

/// A text key for lookups.
pub(super) struct Name<'a>(pub(super) &'a str);

impl Hash for Name<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Equivalent<Key> for Name<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        key.0.as_text() == Some(self.0)
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash(&self.0, state);
    }
}

fn hash<H: Hasher>(value: &Value, state: &mut H) {
    match value {
        Value::Text(text) => text.content.as_str().hash(state),
        Value::List(list) => list.items.iter().for_each(|item| hash(item, state)),
        other => match (whole(other), other.as_float()) {
            (Some(number), _) => number.hash(state),
            (None, Some(number)) => number.to_bits().hash(state),
            (None, None) => {}
        },
    }
}

/// Returns a number of any type as an integer if it is one, since equal numbers of different types are equal
/// keys.
fn whole(value: &Value) -> Option<i128> {
    let of_float = |number: f64| (number.fract() == 0.0 && number.abs() < 1e38).then_some(number as i128);
    value.as_int().or_else(|| value.as_float().and_then(of_float))
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        same(&self.0, &other.0)
    }
}

impl Eq for Key {}

fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Text(one), Value::Text(other)) | (Value::Long(one), Value::Long(other)) => {
            one.content == other.content
        }
        (Value::List(one), Value::List(other)) => {
            one.items.len() == other.items.len()
                && one.items.iter().zip(&other.items).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => Rc::ptr_eq(one, other),
        _ => match (whole(one), whole(other)) {
            (None, None) => {
                let (one, other) = (one.as_float().map(f64::to_bits), other.as_float().map(f64::to_bits));
                one.is_some() && one == other
            }
            (one, other) => one == other,
        },
    }
}
