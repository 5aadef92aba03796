//! Typed access to the JSON files of a model folder. Every error names the file and the key.

use std::fmt;
use std::io::ErrorKind;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::model_file::read_model_file;
use mlx_gguf::{Error, Result};

/// The largest dimension, count or length in a config; shapes are `i32` on the device.
const MAX_SIZE: u64 = 1 << 30;
/// The maximum size of a JSON file of a model folder. tokenizer.json has a separate reader.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Reads a config file. Fails if it is larger than the limit.
pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    read_model_file(path, MAX_FILE_BYTES)?.ok_or_else(|| Error::io(path, ErrorKind::NotFound.into()))
}

/// Parses the JSON object in a file of a model folder. Python writes `Infinity` and `NaN`, which JSON does not allow;
/// they are read as transformers encodes them, as `{"__float__": "Infinity"}`.
pub fn object(path: &Path, bytes: &[u8]) -> Result<Map<String, Value>> {
    expect_utf8_json(path, bytes)?;
    let parsed = serde_json::from_slice(bytes).or_else(|error| match tagged(bytes) {
        Some(tagged) => serde_json::from_slice(&tagged).map_err(|_| error),
        None => Err(error),
    });
    match parsed.map_err(|error| Error::file(path, format!("is not valid JSON: {error}")))? {
        Value::Object(map) => Ok(map),
        _ => Err(Error::file(path, "is not a JSON object")),
    }
}

/// Rejects a file that is empty or begins with a byte order mark: an error about the first character would not help the
/// user.
pub fn expect_utf8_json(path: &Path, bytes: &[u8]) -> Result<()> {
    let message = match bytes {
        [] => "is empty; it must hold JSON",
        [0xef, 0xbb, 0xbf, ..] => "begins with a byte order mark; save it as UTF-8 without one",
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "is in UTF-16; save it as UTF-8 without a byte order mark",
        _ => return Ok(()),
    };
    Err(Error::file(path, message))
}

/// Replaces Python's `Infinity` and `NaN` outside strings by objects. Returns `None` if there are none.
fn tagged(bytes: &[u8]) -> Option<Vec<u8>> {
    const NAMES: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    let (mut out, mut at, mut in_text, mut found) = (Vec::with_capacity(bytes.len()), 0, false, false);
    while at < bytes.len() {
        let name = NAMES.iter().find(|name| !in_text && bytes[at..].starts_with(name.as_bytes()));
        if let Some(name) = name {
            out.extend(format!("{{\"__float__\": \"{name}\"}}").bytes());
            (at, found) = (at + name.len(), true);
            continue;
        }
        let escaped = in_text && bytes[at] == b'\\' && at + 1 < bytes.len();
        let end = if escaped { at + 2 } else { at + 1 };
        in_text ^= bytes[at] == b'"';
        out.extend(&bytes[at..end]);
        at = end;
    }
    found.then_some(out)
}

/// A JSON object in a file. A key whose value is `null` counts as absent. Errors have the caller's type `E`, so that
/// callers need no conversion.
pub struct Fields<E = Error> {
    path: PathBuf,
    prefix: String,
    map: Map<String, Value>,
    error: PhantomData<fn() -> E>,
}

impl<E> Clone for Fields<E> {
    fn clone(&self) -> Self {
        Self {
            path: self.path.clone(),
            prefix: self.prefix.clone(),
            map: self.map.clone(),
            error: PhantomData,
        }
    }
}

impl<E> fmt::Debug for Fields<E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Fields").field("path", &self.path).field("map", &self.map).finish_non_exhaustive()
    }
}

impl<E: From<Error>> Fields<E> {
    /// Reads the file at `path`, which must hold one JSON object.
    pub fn read(path: &Path) -> Result<Self, E> {
        Ok(Self::of(path, object(path, &bytes(path)?)?))
    }

    /// Returns the fields of an object from this file.
    pub fn of(path: &Path, map: Map<String, Value>) -> Self {
        Self { path: path.to_path_buf(), prefix: String::new(), map, error: PhantomData }
    }

    /// Like [`Fields::read`], but returns `None` if the file does not exist.
    pub fn read_optional(path: &Path) -> Result<Option<Self>, E> {
        let Some(bytes) = read_model_file(path, MAX_FILE_BYTES)? else { return Ok(None) };
        Ok(Some(Self::of(path, object(path, &bytes)?)))
    }

    /// The file that contains these fields.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns an error about `key` in this file.
    pub fn error(&self, key: &str, message: impl std::fmt::Display) -> E {
        Error::file(&self.path, format!("{}{key} {message}", self.prefix)).into()
    }

    /// Returns the file name and the full key, including its sections.
    pub fn location(&self, key: &str) -> String {
        let name = self.path.file_name().unwrap_or_default();
        format!("{}: {}{key}", name.display(), self.prefix)
    }

    /// Returns true if `key` is present, even if it is `null`.
    pub fn contains_key(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// Returns true if `key` is present and not `null`.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Returns true if `key` holds an object.
    pub fn is_object(&self, key: &str) -> bool {
        self.get(key).is_some_and(Value::is_object)
    }

    /// Returns true if `key` holds `false`.
    pub fn is_false(&self, key: &str) -> bool {
        self.get(key).and_then(Value::as_bool) == Some(false)
    }

    /// Returns a copy with `key` set to `value` if it is absent.
    #[must_use]
    pub fn with_default(&self, key: &str, value: Value) -> Self {
        let mut fields = self.clone();
        if !fields.has(key) {
            fields.map.insert(key.to_owned(), value);
        }
        fields
    }

    /// Returns a copy without `key`.
    #[must_use]
    pub fn without(&self, key: &str) -> Self {
        let mut fields = self.clone();
        fields.map.remove(key);
        fields
    }

    /// Returns true if `key` is present with the value `null`, which can mean something other than an absent key.
    pub fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// Returns the object under `key`.
    pub fn section(&self, key: &str) -> Result<Option<Self>, E> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self {
                path: self.path.clone(),
                prefix: format!("{}{key}.", self.prefix),
                map: map.clone(),
                error: PhantomData,
            })),
            Some(other) => Err(self.wrong(key, other, "an object")),
        }
    }

    /// Returns a required size of at least 1.
    pub fn size(&self, key: &str) -> Result<usize, E> {
        self.optional_size(key)?.ok_or_else(|| self.error(key, "is missing"))
    }

    /// Returns an optional size of at least 1.
    pub fn optional_size(&self, key: &str) -> Result<Option<usize>, E> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64() {
            Some(size) if (1..=MAX_SIZE).contains(&size) => Ok(Some(size as usize)),
            _ => Err(self.wrong(key, value, "a whole number from 1 to 1073741824")),
        }
    }

    /// Returns an optional whole number, which may be 0.
    pub fn optional_count(&self, key: &str) -> Result<Option<usize>, E> {
        if self.get(key).and_then(serde_json::Value::as_u64) == Some(0) {
            Ok(Some(0))
        } else {
            self.optional_size(key)
        }
    }

    /// Returns an optional finite number.
    pub fn optional_number(&self, key: &str) -> Result<Option<f64>, E> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if number.is_finite() => Ok(Some(number)),
            _ => Err(self.wrong(key, value, "a finite number")),
        }
    }

    /// Returns an optional number above 0.
    pub fn optional_positive(&self, key: &str) -> Result<Option<f64>, E> {
        match self.optional_number(key)? {
            Some(number) if number <= 0.0 || number as f32 <= 0.0 || !(number as f32).is_finite() => {
                Err(self.error(key, format_args!("is {number}; it must be above 0 and fit into 32 bits")))
            }
            other => Ok(other),
        }
    }

    /// Returns a required number above 0.
    pub fn positive(&self, key: &str) -> Result<f64, E> {
        self.optional_positive(key)?.ok_or_else(|| self.error(key, "is missing"))
    }

    /// Returns an optional boolean.
    pub fn optional_flag(&self, key: &str) -> Result<Option<bool>, E> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    /// Returns an optional string.
    pub fn optional_text(&self, key: &str) -> Result<Option<&str>, E> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, other, "a string")),
        }
    }

    /// Returns token ids, given as one id or as a list; empty if absent.
    pub fn token_ids(&self, key: &str) -> Result<Vec<u32>, E> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = match self.get(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(id).collect::<Option<Vec<_>>>(),
            Some(other) => id(other).map(|id| vec![id]),
        };
        ids.ok_or_else(|| self.error(key, "must be a token id or a list of token ids"))
    }

    /// Returns the list of strings under `key`; empty if absent.
    pub fn strings(&self, key: &str) -> Result<Vec<String>, E> {
        let texts = match self.get(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
            Some(_) => None,
        };
        texts.ok_or_else(|| self.error(key, "must be a list of strings"))
    }

    /// Returns the list of finite numbers under `key`; empty if absent.
    pub fn numbers(&self, key: &str) -> Result<Vec<f64>, E> {
        let number = |item: &Value| item.as_f64().filter(|number| number.is_finite());
        let numbers = match self.get(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(number).collect(),
            Some(_) => None,
        };
        numbers.ok_or_else(|| self.error(key, "must be a list of finite numbers"))
    }

    /// Returns a lower and an upper limit, either of which may be infinite.
    pub fn optional_limits(&self, key: &str) -> Result<Option<[f64; 2]>, E> {
        let limit = |item: &Value| match item.get("__float__").and_then(Value::as_str) {
            Some("Infinity") => Some(f64::INFINITY),
            Some("-Infinity") => Some(f64::NEG_INFINITY),
            Some(_) => None,
            None => item.as_f64().filter(|number| number.is_finite()),
        };
        let Some(value) = self.get(key) else { return Ok(None) };
        let pair = match value.as_array().map(Vec::as_slice) {
            Some([least, most]) => limit(least).zip(limit(most)),
            _ => None,
        };
        match pair.filter(|(least, most)| least <= most) {
            Some((least, most)) => Ok(Some([least, most])),
            None => Err(self.wrong(key, value, "a list of a lower and an upper limit")),
        }
    }

    /// The keys of this object.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// Returns the raw value under `key`; `None` if it is `null` or absent.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn wrong(&self, key: &str, value: &Value, expected: &str) -> E {
        let mut shown = value.to_string();
        if let Some((end, _)) = shown.char_indices().nth(60) {
            shown.truncate(end);
            shown.push('…');
        }
        self.error(key, format_args!("is {shown}; it must be {expected}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pythons_infinity_is_a_limit_and_stays_a_text_in_a_text() {
        let text = br#"{"a": [0.0, Infinity], "b": [-Infinity,1], "c": "\"Infinity", "d": [0.0, {"__float__": "Infinity"}], "e": [NaN, 1]}"#;
        let fields: Fields =
            Fields::of(Path::new("config.json"), object(Path::new("config.json"), text).expect("an object"));
        let limits = |key: &str| fields.optional_limits(key).expect("limits");
        assert_eq!(limits("a"), Some([0.0, f64::INFINITY]));
        assert_eq!(limits("b"), Some([f64::NEG_INFINITY, 1.0]));
        assert_eq!(fields.optional_text("c").expect("a text"), Some("\"Infinity"));
        assert_eq!(limits("d"), limits("a"));
        assert_eq!(limits("f"), None);
        fields.optional_limits("e").expect_err("not a number");
        for text in [&b"{\"a\": Infinit}"[..], b"{\"a\": Infinity", b"[Infinity]"] {
            object(Path::new("config.json"), text).expect_err("not an object");
        }
    }
}
