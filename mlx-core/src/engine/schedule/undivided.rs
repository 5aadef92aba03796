//! Ranges of a prompt within which no pass may end: pictures with rows that attend to each other.

use std::ops::Range;
use std::sync::Arc;

/// The ranges, in order, with other tokens between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::engine) struct Undivided(Option<Arc<[Range<usize>]>>);

impl Undivided {
    pub(in crate::engine) fn new(parts: Vec<Range<usize>>) -> Self {
        Self((!parts.is_empty()).then(|| parts.into()))
    }

    /// Returns the range that a boundary at `place` would divide.
    pub(in crate::engine) fn around(&self, place: usize) -> Option<&Range<usize>> {
        let parts = self.0.as_deref()?;
        let next = parts.partition_point(|part| part.end <= place);
        parts.get(next).filter(|part| part.start < place)
    }

    /// Returns the length of the longest range.
    pub(in crate::engine) fn longest(&self) -> usize {
        self.0.iter().flat_map(|parts| parts.iter()).map(ExactSizeIterator::len).max().unwrap_or(0)
    }
}
