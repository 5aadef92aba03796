//! Faults of optional files: a model runs without the settings of such a file, and a warning names the fault.

use crate::error::Result;

/// Faults that do not keep a model from running, each a sentence that names the file and the key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Warnings(Vec<String>);

impl Warnings {
    /// The value, or its default and a warning: the error and this consequence.
    pub(crate) fn or_default<T: Default>(&mut self, result: Result<T>, consequence: &str) -> T {
        result.unwrap_or_else(|error| {
            self.push(format!("{error}; {consequence}"));
            T::default()
        })
    }

    /// Adds a warning.
    pub(crate) fn push(&mut self, text: String) {
        self.0.push(text);
    }

    /// Adds other warnings.
    pub(crate) fn extend(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    /// The sentences.
    pub fn texts(&self) -> &[String] {
        &self.0
    }
}
