//! The fields of a request's JSON object, taken by name. Invariant: a field that was not taken is an error, so no
//! input is silently ignored.

use std::fmt;

use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::field_value::{FieldValue, kind};

/// The fields of an object that have not been taken yet. As in OpenAI's API, `null` is an absent field.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Fields {
    /// The path of the object in the request, as `messages[0].`; empty for the request itself.
    path: String,
    rest: Map<String, Value>,
}

impl Fields {
    /// Parses the body of a request.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let unusable =
            |why: &dyn fmt::Display| ApiError::body(format!("the body is not a valid JSON object: {why}"));
        match serde_json::from_slice(body).map_err(|error| unusable(&error))? {
            Strict(Value::Object(rest)) => Ok(Self { path: String::new(), rest }),
            Strict(other) => Err(unusable(&format_args!("it is {}", kind(&other)))),
        }
    }

    /// The fields of an object at `path` inside the request.
    pub(crate) fn inside(path: &str, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(rest) => Ok(Self { path: format!("{path}."), rest }),
            other => Err(ApiError::field(path, format!("is {}; it must be an object", kind(&other)))),
        }
    }

    /// The full name of a field of this object.
    pub(crate) fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// All fields that were not taken yet, as one object.
    pub(crate) fn whole(&self) -> Value {
        Value::Object(self.rest.clone())
    }

    /// A field that stays where it is.
    pub(crate) fn peek(&self, field: &str) -> Option<&Value> {
        self.rest.get(field).filter(|value| !value.is_null())
    }

    /// All fields that were not taken yet, to be changed where they are.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = (&String, &mut Value)> {
        self.rest.iter_mut()
    }

    /// Takes a field of any type.
    pub(crate) fn value(&mut self, field: &str) -> Option<Value> {
        self.rest.shift_remove(field).filter(|value| !value.is_null())
    }

    /// Takes a field.
    pub(crate) fn take<T: FieldValue>(&mut self, field: &str) -> Result<Option<T>, ApiError> {
        let Some(value) = self.value(field) else { return Ok(None) };
        T::read(value).map(Some).map_err(|why| ApiError::field(self.name(field), why))
    }

    /// Takes a field that only accepts the values in `allowed`.
    pub(crate) fn only(&mut self, field: &str, allowed: &[Value], why: &str) -> Result<(), ApiError> {
        match self.value(field) {
            Some(value) if !allowed.contains(&value) => Err(ApiError::unsupported(
                self.name(field),
                format!("has a value that is not supported: {why}"),
            )),
            _ => Ok(()),
        }
    }

    /// Refuses fields of OpenAI's API that are not supported, by name.
    pub(crate) fn refuse(&mut self, refused: &[(&str, &str)]) -> Result<(), ApiError> {
        match refused.iter().find_map(|(field, why)| self.value(field).map(|_| (field, why))) {
            None => Ok(()),
            Some((field, why)) => {
                Err(ApiError::unsupported(self.name(field), format!("is not supported: {why}")))
            }
        }
    }

    /// The names of fields that were not taken, where an API takes more fields than a server knows.
    pub(crate) fn ignored(self) -> Vec<String> {
        self.rest.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name).collect()
    }

    /// Checks that every field was taken.
    pub(crate) fn end(self) -> Result<(), ApiError> {
        match self.rest.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((field, _)) => {
                let message = "is not a field of this request; remove it or check the spelling";
                let mut name = self.name(field);
                name.truncate(name.floor_char_boundary(100));
                Err(ApiError::unsupported(name, message))
            }
        }
    }
}

/// Any value without duplicate keys in an object.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(value)) = access.next_element()? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, Strict(value))) = access.next_entry::<String, Strict>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate field {key:?}")));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// Defines a group of request fields, documented for OpenAPI and read by the names of the struct's fields. Both come
/// from one definition, so they cannot differ.
macro_rules! field_group {
    ($(#[$meta:meta])* pub(crate) struct $name:ident { $($(#[$field_meta:meta])* pub(crate) $field:ident: $kind:ty,)* }) => {
        #[derive(Debug, Clone, Default, PartialEq, utoipa::ToSchema)]
        $(#[$meta])*
        pub(crate) struct $name { $($(#[$field_meta])* pub(crate) $field: Option<$kind>,)* }

        impl $name {
            /// Takes these fields from a request.
            pub(crate) fn read(fields: &mut $crate::fields::Fields) -> Result<Self, $crate::error::ApiError> {
                Ok(Self { $($field: fields.take(stringify!($field))?,)* })
            }
        }
    };
}
pub(crate) use field_group;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: &Value) -> Fields {
        Fields::parse(value.to_string().as_bytes()).expect("an object")
    }

    #[test]
    fn a_field_that_was_not_taken_is_named() {
        let mut given = fields(&json!({"a": 1, "b": null, "c": 2}));
        assert_eq!(given.take::<u32>("a").expect("a number"), Some(1));
        assert_eq!(given.take::<u32>("b").expect("absent"), None);
        assert_eq!(given.end().expect_err("c is left").param(), Some("c"));
        assert!(fields(&json!({"d": null})).end().is_ok());
    }

    #[test]
    fn a_field_of_the_wrong_type_is_named_with_its_path() {
        let mut inner = Fields::inside("messages[3]", json!({"role": 5})).expect("an object");
        assert_eq!(inner.take::<String>("role").expect_err("a number").param(), Some("messages[3].role"));
        assert_eq!(Fields::inside("stop", json!([])).expect_err("a list").param(), Some("stop"));
    }

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        let deep = "[".repeat(100_000);
        for body in [
            "",
            "[]",
            "{",
            "{\"a\": 1e999}",
            "{\"a\": 1, \"a\": 2}",
            "{\"b\": [{\"a\": 1, \"a\": 1}]}",
            "{\"\u{1}\": }",
            &deep,
        ] {
            assert_eq!(Fields::parse(body.as_bytes()).expect_err(body).status().as_u16(), 400);
        }
        assert!(Fields::parse(b"{\"a\": \"\xff\"}").is_err());
    }
}
