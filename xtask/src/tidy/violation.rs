//! A violation of a rule.

use super::files::SourceFile;

/// A violation of a rule at a line; line 0 is the whole file.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Violation {
    pub(super) path: String,
    pub(super) line: usize,
    pub(super) rule: String,
}

impl Violation {
    pub(super) fn new(file: &SourceFile, line: usize, rule: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line, rule: rule.into() }
    }
}
