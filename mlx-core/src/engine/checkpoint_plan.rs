//! Plans the checkpoints of a running sequence's state. It does not depend on how checkpoints are stored.

use std::collections::BTreeSet;

use crate::cache::SequenceState;

/// The lengths at which a sequence takes checkpoints, in addition to chunk boundaries. They are multiples of the block size of saved
/// prefixes, so that they can be saved.
#[derive(Debug, Default)]
pub(super) struct CheckpointPlan {
    is_on: bool,
    marks: BTreeSet<usize>,
}

impl CheckpointPlan {
    /// Requests a checkpoint at `length` that eviction skips.
    pub(super) fn mark(&mut self, length: usize) {
        self.is_on = true;
        self.marks.insert(length);
    }

    /// Makes the sequence take checkpoints from now on.
    pub(super) fn start(&mut self) {
        self.is_on = true;
    }

    /// Returns true if eviction skips the checkpoint at `length`.
    pub(super) fn is_marked(&self, length: usize) -> bool {
        self.marks.contains(&length)
    }

    /// Returns true if the sequence takes checkpoints.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns the next two lengths at which a chunk of the prompt must end; 0 for none.
    pub(super) fn cuts(&self, seen: usize) -> [usize; 2] {
        let mut next = self.marks.range(seen + 1..);
        [next.next(), next.next()].map(|mark| mark.copied().unwrap_or(0))
    }

    /// Adds a checkpoint at the end of a reused state. The entry that is stored for the sequence then replaces the one that it reused.
    pub(super) fn resumed(&self, mut state: SequenceState) -> SequenceState {
        if self.is_on
            && let Err(error) = state.checkpoint(true)
        {
            tracing::warn!(%error, "cannot take a checkpoint");
        }
        state
    }
}
