//! The metadata of a GGUF file: typed access by key. Every error names the file and the key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The key that names the architecture. The keys of the architecture begin with this name.
const ARCHITECTURE: &str = "general.architecture";

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// An integer of any width.
    Integer(i128),
    /// A float of 32 or 64 bits.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string. Invalid UTF-8 is replaced.
    Text(String),
    /// A list of values of one type.
    List(List),
}

/// A list of values of one type.
#[derive(Debug, Clone, PartialEq)]
pub enum List {
    /// Integers of any width.
    Integers(Vec<i64>),
    /// Floats.
    Floats(Vec<f64>),
    /// Booleans.
    Bools(Vec<bool>),
    /// Strings.
    Texts(Vec<String>),
    /// Lists of lists, which no model needs.
    Nested,
}

/// The metadata of a file.
#[derive(Debug, Clone)]
pub struct Metadata {
    path: PathBuf,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// Returns the metadata of the file at `path`.
    pub(crate) fn of(path: &Path, values: BTreeMap<String, Value>) -> Self {
        Self { path: path.to_path_buf(), values }
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns an error about `key`.
    pub(crate) fn error(&self, key: &str, message: impl std::fmt::Display) -> Error {
        Error::file(&self.path, format!("{key} {message}"))
    }

    /// The architecture, such as `llama`.
    pub(crate) fn architecture(&self) -> Result<&str> {
        self.text(ARCHITECTURE)?.ok_or_else(|| self.error(ARCHITECTURE, "is missing"))
    }

    /// Returns the full name of a key of the architecture: `llama.block_count` for `block_count`.
    pub(crate) fn key(&self, name: &str) -> Result<String> {
        Ok(format!("{}.{name}", self.architecture()?))
    }

    /// Returns the value under `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Returns an optional string.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.error(key, "must be a string")),
        }
    }

    /// Returns an optional boolean.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.error(key, "must be a boolean")),
        }
    }

    /// Returns an optional whole number of at least 0 that fits into 31 bits.
    pub(crate) fn size(&self, key: &str) -> Result<Option<usize>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Integer(number)) if (0..=i128::from(i32::MAX)).contains(number) => {
                Ok(Some(*number as usize))
            }
            Some(_) => Err(self.error(key, "must be a whole number from 0 to 2147483647")),
        }
    }

    /// Returns an optional finite number.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Float(number)) if number.is_finite() => Ok(Some(*number)),
            Some(Value::Integer(number)) => Ok(Some(*number as f64)),
            Some(_) => Err(self.error(key, "must be a finite number")),
        }
    }

    /// Returns an optional list of integers. A single integer counts as a list of one.
    pub(crate) fn integers(&self, key: &str) -> Result<Option<Vec<i64>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Integer(number)) if i64::try_from(*number).is_ok() => Ok(Some(vec![*number as i64])),
            Some(Value::List(List::Integers(list))) => Ok(Some(list.clone())),
            Some(Value::List(List::Bools(list))) => {
                Ok(Some(list.iter().map(|flag| i64::from(*flag)).collect()))
            }
            Some(_) => Err(self.error(key, "must be an integer or a list of integers")),
        }
    }

    /// Returns an optional list of numbers.
    pub(crate) fn numbers(&self, key: &str) -> Result<Option<&[f64]>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::List(List::Floats(list))) => Ok(Some(list)),
            Some(_) => Err(self.error(key, "must be a list of floats")),
        }
    }

    /// Returns an optional list of strings.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<&[String]>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::List(List::Texts(list))) => Ok(Some(list)),
            Some(_) => Err(self.error(key, "must be a list of strings")),
        }
    }
}
