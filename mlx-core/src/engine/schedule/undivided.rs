//! Parts of a prompt in which no pass may end: pictures whose rows attend to each other.

use std::ops::Range;
use std::sync::Arc;

/// The places of such parts, in order, with something between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::engine) struct Undivided(Option<Arc<[Range<usize>]>>);

impl Undivided {
    pub(in crate::engine) fn new(parts: Vec<Range<usize>>) -> Self {
        Self((!parts.is_empty()).then(|| parts.into()))
    }

    /// The part that a boundary at `place` would divide.
    pub(in crate::engine) fn around(&self, place: usize) -> Option<&Range<usize>> {
        let parts = self.0.as_deref()?;
        let next = parts.partition_point(|part| part.end <= place);
        parts.get(next).filter(|part| part.start < place)
    }

    /// The length of the longest part.
    pub(in crate::engine) fn longest(&self) -> usize {
        self.0.iter().flat_map(|parts| parts.iter()).map(ExactSizeIterator::len).max().unwrap_or(0)
    }
}
