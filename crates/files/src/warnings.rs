//! Errors in optional files. A model runs without the settings of a faulty file, and a warning describes the
//! error.

use std::fmt;

/// Errors that do not prevent a model from running. Each is a sentence that names the file and the key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Warnings(Vec<String>);

impl Warnings {
    /// Returns the value, or its default after an error. The warning contains the error and this consequence.
    pub fn or_default<T: Default>(&mut self, result: Result<T, impl fmt::Display>, consequence: &str) -> T {
        result.unwrap_or_else(|error| {
            self.push(format!("{error}; {consequence}"));
            T::default()
        })
    }

    /// Adds a warning.
    pub fn push(&mut self, text: String) {
        self.0.push(text);
    }

    /// Appends other warnings.
    pub fn extend(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    /// The warnings as sentences.
    pub fn texts(&self) -> &[String] {
        &self.0
    }
}
