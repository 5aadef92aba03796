//! JSON that preserves the text of numbers. `serde_json` stores a number in 64 bits, which loses long integers and the
//! spelling of floats. Clients, tools, templates and models exchange values of this type.
//!
//! ```
//! let value = mlx_json::parse(br#"{"id": 123456789012345678901234567890, "score": 1.50}"#)?;
//! assert_eq!(value.to_string(), r#"{"id":123456789012345678901234567890,"score":1.50}"#);
//! # Ok::<(), serde_json::Error>(())
//! ```

mod number;
pub mod pointer;
mod read;
mod value;

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

pub use number::Number;
pub use read::{parse, parse_strict};

/// The entries of an object, in order.
pub type Map<K = String, V = Value> = indexmap::IndexMap<K, V>;

/// A JSON value.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Value {
    /// `null`
    #[default]
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    String(String),
    /// A list.
    Array(Vec<Value>),
    /// An object.
    Object(Map),
}

/// Returns the JSON value of a serializable value.
pub fn to_value(value: &impl Serialize) -> serde_json::Result<Value> {
    parse(&serde_json::to_vec(value)?)
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(flag) => serializer.serialize_bool(*flag),
            Self::Number(number) => number.serialize(serializer),
            Self::String(text) => serializer.serialize_str(text),
            Self::Array(items) => serializer.collect_seq(items),
            Self::Object(entries) => serializer.collect_map(entries),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    /// Reads a value from a JSON text and preserves the text of its numbers.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        parse(text.get().as_bytes()).map_err(serde::de::Error::custom)
    }
}

/// Writes JSON without whitespace.
impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests;
