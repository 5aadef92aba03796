//! Parses JSON. `serde_json` visits values in the order of the text, so a scan of the same bytes finds the text of each
//! number.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{Map, Number, Value};

/// Parses a JSON text. If an object repeats a key, the last value wins, as in Python.
pub fn parse(text: &[u8]) -> serde_json::Result<Value> {
    read(text, false)
}

/// Like [`parse`], but rejects objects that repeat a key.
pub fn parse_strict(text: &[u8]) -> serde_json::Result<Value> {
    read(text, true)
}

fn read(text: &[u8], is_strict: bool) -> serde_json::Result<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = Reader { numbers: &mut Numbers { rest: text }, is_strict }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// An iterator over the texts of the numbers in a valid JSON text.
struct Numbers<'a> {
    rest: &'a [u8],
}

impl Numbers<'_> {
    fn next(&mut self) -> Option<Number> {
        let mut is_in_string = false;
        let mut bytes = self.rest.iter().enumerate();
        let start = loop {
            match bytes.next()? {
                (_, b'\\') => drop(bytes.next()),
                (_, b'"') => is_in_string = !is_in_string,
                (at, b'-' | b'0'..=b'9') if !is_in_string => break at,
                _ => {}
            }
        };
        let after = &self.rest[start..];
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
        let (number, rest) = after.split_at(after.iter().take_while(|byte| is_digit(byte)).count());
        self.rest = rest;
        std::str::from_utf8(number).ok().map(Number::of_json)
    }
}

struct Reader<'a, 'n> {
    numbers: &'a mut Numbers<'n>,
    is_strict: bool,
}

impl Reader<'_, '_> {
    fn number<E: Error>(self) -> Result<Value, E> {
        self.numbers.next().map(Value::Number).ok_or_else(|| E::custom("a number has no text"))
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_, '_> {
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

    fn visit_u64<E: Error>(self, _: u64) -> Result<Value, E> {
        self.number()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Value, E> {
        self.number()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Value, E> {
        self.number()
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let Self { numbers, is_strict } = self;
        let mut list = Vec::new();
        while let Some(value) = access.next_element_seed(Reader { numbers: &mut *numbers, is_strict })? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let Self { numbers, is_strict } = self;
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if is_strict && map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate field {key:?}")));
            }
            let value = access.next_value_seed(Reader { numbers: &mut *numbers, is_strict })?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
