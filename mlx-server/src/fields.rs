//! The fields of a request's JSON object, taken by name. Invariant: no field is silently ignored. Unused fields at the top level are reported
//! to the client; an unknown nested field is an error.

use std::fmt;

use mlx_json::{Map, Value};

use crate::error::ApiError;
use crate::field_value::{FieldValue, kind};

/// The remaining fields of an object. As in OpenAI's API, `null` means that a field is absent.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Fields {
    /// The path of the object in the request, such as `messages[0].`. Empty for the request itself.
    path: String,
    remaining: Map,
    /// The full names of accepted fields without effect.
    unused: Vec<String>,
}

#[cfg(test)]
thread_local! {
    /// The names of top-level fields that this thread has read.
    pub(crate) static READ: std::cell::RefCell<std::collections::BTreeSet<String>> = std::cell::RefCell::default();
}

impl Fields {
    /// Parses the body of a request.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let unusable = |reason: &dyn fmt::Display| {
            ApiError::body(format!("the body is not a valid JSON object: {reason}"))
        };
        match mlx_json::parse_strict(body).map_err(|error| unusable(&error))? {
            Value::Object(remaining) => Ok(Self { remaining, ..Self::default() }),
            other => Err(unusable(&format_args!("it is {}", kind(&other)))),
        }
    }

    /// Returns the fields of a request that is no JSON.
    pub(crate) fn of(remaining: Map) -> Self {
        Self { remaining, ..Self::default() }
    }

    /// Returns the fields of an object at `path` in the request.
    pub(crate) fn nested(path: &str, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(remaining) => Ok(Self { path: format!("{path}."), remaining, unused: Vec::new() }),
            other => Err(ApiError::field(path, format!("is {}; it must be an object", kind(&other)))),
        }
    }

    /// Returns the full name of a field of this object.
    pub(crate) fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// Returns all remaining fields as one object.
    pub(crate) fn to_value(&self) -> Value {
        Value::Object(self.remaining.clone())
    }

    /// Returns a field without taking it.
    pub(crate) fn peek(&self, field: &str) -> Option<&Value> {
        #[cfg(test)]
        self.note(field);
        self.remaining.get(field).filter(|value| !value.is_null())
    }

    /// Iterates over the remaining fields, so that they can be changed.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = (&String, &mut Value)> {
        self.remaining.iter_mut()
    }

    /// Takes a field of any JSON type.
    pub(crate) fn value(&mut self, field: &str) -> Option<Value> {
        self.remaining.shift_remove(field).filter(|value| !value.is_null())
    }

    /// Takes a field of type `T`.
    pub(crate) fn take<T: FieldValue>(&mut self, field: &str) -> Result<Option<T>, ApiError> {
        #[cfg(test)]
        self.note(field);
        let Some(value) = self.value(field) else { return Ok(None) };
        T::read(value).map(Some).map_err(|reason| ApiError::field(self.name(field), reason))
    }

    /// Takes a field that supports only the values in `allowed`.
    pub(crate) fn expect_one_of(
        &mut self,
        field: &str,
        allowed: &[serde_json::Value],
        reason: &str,
    ) -> Result<(), ApiError> {
        match self.value(field) {
            Some(value) if !allowed.iter().any(|other| value == *other) => Err(ApiError::unsupported(
                self.name(field),
                format!("has a value that is not supported: {reason}"),
            )),
            _ => Ok(()),
        }
    }

    /// Rejects unsupported fields of OpenAI's API.
    pub(crate) fn reject(&mut self, unsupported: &[(&str, &str)]) -> Result<(), ApiError> {
        match unsupported
            .iter()
            .find(|(field, _)| self.remaining.get(*field).is_some_and(|value| !value.is_null()))
        {
            None => Ok(()),
            Some((field, reason)) => {
                Err(ApiError::unsupported(self.name(field), format!("is not supported: {reason}")))
            }
        }
    }

    /// Takes fields that are accepted but have no effect, and records their names.
    pub(crate) fn read_unused<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let before: Vec<String> = self.remaining_names().map(str::to_owned).collect();
        let read = read(self)?;
        let taken = before.into_iter().filter(|field| !self.remaining.contains_key(field));
        let names: Vec<String> = taken.map(|field| self.name(&field)).collect();
        self.unused.extend(names);
        Ok(read)
    }

    /// Records that a top-level field was read.
    #[cfg(test)]
    fn note(&self, field: &str) {
        if self.path.is_empty() {
            READ.with_borrow_mut(|read| read.insert(field.to_owned()));
        }
    }

    /// Takes a field that is accepted but has no effect. Records its name unless its value is one of `neutral`, for which ignoring it
    /// changes nothing.
    pub(crate) fn take_unused(&mut self, field: &str, neutral: &[serde_json::Value]) {
        if self.value(field).is_some_and(|value| !neutral.iter().any(|other| value == *other)) {
            self.unused.push(self.name(field));
        }
    }

    /// Records the names of other unused fields of the request.
    pub(crate) fn add_unused(&mut self, names: impl IntoIterator<Item = String>) {
        self.unused.extend(names);
    }

    fn remaining_names(&self) -> impl Iterator<Item = &str> {
        self.remaining.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str())
    }

    /// Returns the full names of all unused fields, including the unknown ones.
    pub(crate) fn into_unused(self) -> Vec<String> {
        let left: Vec<String> = self.remaining_names().map(|field| self.name(field)).collect();
        self.unused.into_iter().chain(left).collect()
    }

    /// Checks that no unknown field remains. Returns the full names of the unused fields.
    pub(crate) fn finish(self) -> Result<Vec<String>, ApiError> {
        if let Some(field) = self.remaining_names().next() {
            return Err(unsupported_field(
                &self.name(field),
                "is not a known field; remove it or check the spelling",
            ));
        }
        Ok(self.unused)
    }

    /// Checks that no unknown field remains.
    pub(crate) fn end(self) -> Result<(), ApiError> {
        self.finish().map(drop)
    }
}

/// Returns an error about a field. Long names are truncated.
pub(crate) fn unsupported_field(field: &str, reason: &str) -> ApiError {
    ApiError::unsupported(&field[..field.floor_char_boundary(100)], reason)
}

/// Defines a group of request fields. The struct both documents the fields for OpenAPI and reads them, so that the two cannot
/// differ.
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

/// Like `serde_json::json!`, for values of requests.
#[cfg(test)]
macro_rules! value {
    ($($tokens:tt)*) => { mlx_json::Value::from(serde_json::json!($($tokens)*)) };
}
#[cfg(test)]
pub(crate) use value;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: &serde_json::Value) -> Fields {
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
    fn fields_that_are_not_used_are_named() {
        let request =
            json!({"used": 1, "hint": 2, "neutral": false, "named": true, "new": {}, "absent": null});
        let mut given = fields(&request);
        given.take::<u32>("used").expect("a number");
        given.read_unused(|given| given.take::<u32>("hint")).expect("a number");
        given.take_unused("neutral", &[json!(false)]);
        given.take_unused("named", &[json!(false)]);
        given.add_unused(["tools[0]".to_owned()]);
        assert_eq!(given.into_unused(), ["hint", "named", "tools[0]", "new"]);
        let mut inner = Fields::nested("options", value!({"a": 1, "b": 2})).expect("an object");
        inner.read_unused(|inner| Ok(inner.value("a"))).expect("no fault");
        assert_eq!(inner.into_unused(), ["options.a", "options.b"]);
    }

    #[test]
    fn a_field_of_the_wrong_type_is_named_with_its_path() {
        let mut inner = Fields::nested("messages[3]", value!({"role": 5})).expect("an object");
        assert_eq!(inner.take::<String>("role").expect_err("a number").param(), Some("messages[3].role"));
        assert_eq!(Fields::nested("stop", value!([])).expect_err("a list").param(), Some("stop"));
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
