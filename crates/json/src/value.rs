//! Access to values, conversions and comparison.

use std::ops::Index;

use super::{Map, Number, Value};

impl Value {
    /// Returns an object with these entries.
    pub fn object<const N: usize>(entries: [(&str, Value); N]) -> Self {
        entries.into_iter().collect()
    }

    /// Returns true for `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Returns the value of a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(flag) = self { Some(*flag) } else { None }
    }

    /// Returns a number.
    pub fn as_number(&self) -> Option<&Number> {
        if let Self::Number(number) = self { Some(number) } else { None }
    }

    /// Returns the float nearest to a number.
    pub fn as_f64(&self) -> Option<f64> {
        self.as_number()?.as_f64()
    }

    /// Returns a string.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    /// Returns the items of a list.
    pub fn as_array(&self) -> Option<&Vec<Self>> {
        if let Self::Array(items) = self { Some(items) } else { None }
    }

    /// Returns the items of a list.
    pub fn as_array_mut(&mut self) -> Option<&mut Vec<Self>> {
        if let Self::Array(items) = self { Some(items) } else { None }
    }

    /// Returns the entries of an object.
    pub fn as_object(&self) -> Option<&Map> {
        if let Self::Object(entries) = self { Some(entries) } else { None }
    }

    /// Returns the entries of an object.
    pub fn as_object_mut(&mut self) -> Option<&mut Map> {
        if let Self::Object(entries) = self { Some(entries) } else { None }
    }

    /// Returns the entries of an object.
    pub fn into_object(self) -> Option<Map> {
        if let Self::Object(entries) = self { Some(entries) } else { None }
    }

    /// Returns an entry of an object.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.as_object()?.get(key)
    }

    /// Sets an entry of an object.
    pub fn insert(&mut self, key: &str, value: Value) {
        if let Self::Object(entries) = self {
            entries.insert(key.to_owned(), value);
        }
    }

    /// Returns an entry of an object.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        self.as_object_mut()?.get_mut(key)
    }
}

/// Returns an entry of an object, or null.
impl Index<&str> for Value {
    type Output = Self;

    fn index(&self, key: &str) -> &Self {
        self.get(key).unwrap_or(&Self::Null)
    }
}

/// Returns an item of a list, or null.
impl Index<usize> for Value {
    type Output = Self;

    fn index(&self, place: usize) -> &Self {
        self.as_array().and_then(|items| items.get(place)).unwrap_or(&Self::Null)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

macro_rules! integers {
    ($($kind:ty),*) => {$(
        impl From<$kind> for Value {
            fn from(number: $kind) -> Self {
                Self::Number(Number::of_integer(number))
            }
        }
    )*};
}
integers!(i32, i64, u32, u64, usize);

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<Vec<Value>> for Value {
    fn from(items: Vec<Value>) -> Self {
        Self::Array(items)
    }
}

impl From<Map> for Value {
    fn from(entries: Map) -> Self {
        Self::Object(entries)
    }
}

impl FromIterator<Value> for Value {
    fn from_iter<I: IntoIterator<Item = Value>>(items: I) -> Self {
        Self::Array(items.into_iter().collect())
    }
}

impl<K: Into<String>> FromIterator<(K, Value)> for Value {
    fn from_iter<I: IntoIterator<Item = (K, Value)>>(entries: I) -> Self {
        Self::Object(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }
}

impl From<serde_json::Value> for Value {
    fn from(value: serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(flag) => Self::Bool(flag),
            serde_json::Value::Number(number) => Self::Number(number.into()),
            serde_json::Value::String(text) => Self::String(text),
            serde_json::Value::Array(items) => items.into_iter().map(Self::from).collect(),
            serde_json::Value::Object(entries) => {
                entries.into_iter().map(|(key, value)| (key, Self::from(value))).collect()
            }
        }
    }
}

impl From<Value> for serde_json::Value {
    /// Rounds numbers to 64 bits, for grammars and type checks.
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(flag) => Self::Bool(flag),
            Value::Number(number) => number.into(),
            Value::String(text) => Self::String(text),
            Value::Array(items) => items.into_iter().map(Self::from).collect(),
            Value::Object(entries) => {
                entries.into_iter().map(|(key, value)| (key, Self::from(value))).collect()
            }
        }
    }
}

/// Compares numbers as 64-bit values.
impl PartialEq<serde_json::Value> for Value {
    fn eq(&self, other: &serde_json::Value) -> bool {
        use serde_json::Value as Other;
        match (self, other) {
            (Self::Null, Other::Null) => true,
            (Self::Bool(one), Other::Bool(other)) => one == other,
            (Self::String(one), Other::String(other)) => one == other,
            (Self::Array(one), Other::Array(other)) => one == other,
            (Self::Object(one), Other::Object(other)) => {
                one.len() == other.len()
                    && one.iter().all(|(key, value)| other.get(key).is_some_and(|other| value == other))
            }
            (Self::Number(one), other) => {
                let one = Other::from(one.clone());
                one == *other
            }
            _ => false,
        }
    }
}

impl PartialEq<&str> for Value {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == Some(other)
    }
}
