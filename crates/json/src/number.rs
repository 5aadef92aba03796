//! JSON numbers, stored as their text.

use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// A JSON number. Two numbers are equal if their texts are equal.
#[derive(Clone, PartialEq, Eq)]
pub struct Number(Repr);

/// The representation of a number. Most numbers are short integers, which need no allocation.
#[derive(Clone, PartialEq, Eq)]
enum Repr {
    Integer(i64),
    Text(Box<str>),
}

impl Number {
    /// Returns the number with this text.
    pub(super) fn of_json(text: &str) -> Self {
        match text.parse() {
            Ok(integer) if text != "-0" => Self(Repr::Integer(integer)),
            _ => Self(Repr::Text(text.into())),
        }
    }

    /// Returns an integer as a number.
    pub(super) fn of_integer<I: Copy + ToString + TryInto<i64>>(integer: I) -> Self {
        let text = |_| Repr::Text(integer.to_string().into());
        Self(integer.try_into().map_or_else(text, Repr::Integer))
    }

    /// Returns true if the number has neither a fraction nor an exponent.
    pub fn is_integer(&self) -> bool {
        match &self.0 {
            Repr::Integer(_) => true,
            Repr::Text(text) => !text.contains(['.', 'e', 'E']),
        }
    }

    /// Returns the value if it is an integer in the range of `i64`.
    pub fn as_i64(&self) -> Option<i64> {
        self.as_i128()?.try_into().ok()
    }

    /// Returns the value if it is an integer in the range of `u64`.
    pub fn as_u64(&self) -> Option<u64> {
        self.as_i128()?.try_into().ok()
    }

    /// Returns the value if it is an integer in the range of `i128`.
    pub fn as_i128(&self) -> Option<i128> {
        match &self.0 {
            Repr::Integer(integer) => Some((*integer).into()),
            Repr::Text(text) => text.parse().ok(),
        }
    }

    /// Returns the nearest float.
    pub fn as_f64(&self) -> Option<f64> {
        match &self.0 {
            Repr::Integer(integer) => Some(*integer as f64),
            Repr::Text(text) => text.parse().ok(),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Integer(integer) => integer.fmt(out),
            Repr::Text(text) => text.fmt(out),
        }
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Number({self})")
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Repr::Integer(integer) => serializer.serialize_i64(*integer),
            Repr::Text(text) => {
                let raw: &RawValue = serde_json::from_str(text).map_err(serde::ser::Error::custom)?;
                raw.serialize(serializer)
            }
        }
    }
}

impl From<serde_json::Number> for Number {
    fn from(number: serde_json::Number) -> Self {
        Self::of_json(&number.to_string())
    }
}

impl From<Number> for serde_json::Value {
    /// Rounds to the nearest 64-bit number.
    fn from(number: Number) -> Self {
        match number.0 {
            Repr::Integer(integer) => integer.into(),
            Repr::Text(text) => serde_json::from_str(&text).unwrap_or_default(),
        }
    }
}
