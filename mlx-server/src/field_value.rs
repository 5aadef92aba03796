//! The types of request fields, with the errors for values of another type.

use std::collections::BTreeMap;

use mlx_json::{Map, Number, Value};

/// Integers up to this limit are exact as floats.
const MAX_EXACT_INTEGER: f64 = (1_u64 << 53) as f64;

/// A type that request fields can have.
pub(crate) trait FieldValue: Sized {
    /// Converts a JSON value. An error is the end of a sentence about the field.
    fn read(value: Value) -> Result<Self, String>;
}

/// Returns the JSON type of a value, for error messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Returns an integer. It may be written as a float, such as 5.0.
pub(crate) fn as_integer(number: &Number) -> Option<i128> {
    let float = || number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() <= MAX_EXACT_INTEGER);
    number.as_i128().or_else(|| float().map(|float| float as i128))
}

fn expected(value: &Value, what: &str) -> String {
    match value {
        Value::Number(number) => format!("is {number}; it must be {what}"),
        other => format!("is {}; it must be {what}", kind(other)),
    }
}

impl FieldValue for Value {
    fn read(value: Value) -> Result<Self, String> {
        Ok(value)
    }
}

impl FieldValue for bool {
    fn read(value: Value) -> Result<Self, String> {
        value.as_bool().ok_or_else(|| expected(&value, "true or false"))
    }
}

impl FieldValue for String {
    fn read(value: Value) -> Result<Self, String> {
        match value {
            Value::String(text) => Ok(text),
            other => Err(expected(&other, "a string")),
        }
    }
}

impl FieldValue for Number {
    fn read(value: Value) -> Result<Self, String> {
        match value {
            Value::Number(number) => Ok(number),
            other => Err(expected(&other, "a number")),
        }
    }
}

impl FieldValue for f32 {
    fn read(value: Value) -> Result<Self, String> {
        value.as_f64().map(|number| number as Self).ok_or_else(|| expected(&value, "a number"))
    }
}

macro_rules! whole_numbers {
    ($($kind:ty),*) => {$(
        impl FieldValue for $kind {
            fn read(value: Value) -> Result<Self, String> {
                let number = value.as_number().and_then(as_integer).and_then(|number| Self::try_from(number).ok());
                let what = || format!("a whole number from {} to {}", Self::MIN, Self::MAX);
                number.ok_or_else(|| expected(&value, &what()))
            }
        }
    )*};
}
whole_numbers!(u32, usize, i64);

impl FieldValue for Vec<String> {
    fn read(value: Value) -> Result<Self, String> {
        let Value::Array(list) = value else { return Err(expected(&value, "a list of strings")) };
        let text = |(index, value)| {
            String::read(value).map_err(|reason| format!("has an entry at index {index} that {reason}"))
        };
        list.into_iter().enumerate().map(text).collect()
    }
}

impl FieldValue for Vec<Value> {
    fn read(value: Value) -> Result<Self, String> {
        match value {
            Value::Array(list) => Ok(list),
            other => Err(expected(&other, "a list")),
        }
    }
}

impl FieldValue for Map<String, Value> {
    fn read(value: Value) -> Result<Self, String> {
        match value {
            Value::Object(map) => Ok(map),
            other => Err(expected(&other, "an object")),
        }
    }
}

impl FieldValue for BTreeMap<String, f32> {
    fn read(value: Value) -> Result<Self, String> {
        let number = |(key, value)| match f32::read(value) {
            Ok(number) => Ok((key, number)),
            Err(reason) => Err(format!("has a value for {key:?} that {reason}")),
        };
        Map::read(value)?.into_iter().map(number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    #[test]
    fn whole_numbers_may_be_written_as_floats() {
        assert_eq!(usize::read(json!(1992.0)), Ok(1992));
        assert_eq!(usize::read(json!(1e3)), Ok(1000));
        assert_eq!(i64::read(json!(-1.0)), Ok(-1));
        assert_eq!(usize::read(json!(u64::MAX)), Ok(usize::MAX));
        for (wrong, word) in
            [(json!(1.5), "is 1.5"), (json!(-1), "is -1"), (json!(1e300), "whole"), (json!("5"), "a string")]
        {
            assert!(u32::read(wrong).expect_err(word).contains(word));
        }
    }

    /// Error messages use the words of JSON, not those of Rust.
    #[test]
    fn messages_speak_of_json() {
        let wrong = json!({"a": "b"});
        let messages = [
            bool::read(wrong.clone()).map(drop),
            String::read(wrong.clone()).map(drop),
            usize::read(wrong.clone()).map(drop),
            f32::read(wrong.clone()).map(drop),
            Vec::<String>::read(json!([5])).map(drop),
            Map::read(json!([])).map(drop),
            BTreeMap::read(wrong).map(drop),
        ];
        for message in messages.map(|outcome| outcome.expect_err("of another type")) {
            assert!(message.contains("must be"), "{message}");
            for word in ["usize", "u32", "f32", "i64", "expected", "sequence", "map", "integer `"] {
                assert!(!message.contains(word), "{message}");
            }
        }
    }
}
