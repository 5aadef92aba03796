//! Where a running sequence takes checkpoints of its state. Invariant: nothing about how they are kept.

use std::collections::BTreeSet;

use crate::cache::SequenceState;

/// The lengths of a sequence's checkpoints besides the boundaries of its chunks: multiples of a block of saved prefixes, which can be saved.
#[derive(Debug, Default)]
pub(super) struct CheckpointPlan {
    is_on: bool,
    marks: BTreeSet<usize>,
}

impl CheckpointPlan {
    /// Takes a checkpoint at `length`, which stays when others are evicted.
    pub(super) fn mark(&mut self, length: usize) {
        self.is_on = true;
        self.marks.insert(length);
    }

    /// From now on the sequence takes checkpoints.
    pub(super) fn start(&mut self) {
        self.is_on = true;
    }

    /// Returns true if eviction skips the checkpoint at `length`.
    pub(super) fn is_marked(&self, length: usize) -> bool {
        self.marks.contains(&length)
    }

    /// Whether the sequence takes checkpoints at all.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// The next lengths at which a chunk of the prompt has to end.
    pub(super) fn cuts(&self, seen: usize) -> [usize; 2] {
        let mut next = self.marks.range(seen + 1..);
        [next.next(), next.next()].map(|mark| mark.copied().unwrap_or(0))
    }

    /// A state that was taken over, with a checkpoint where it goes on: what is kept of the sequence then replaces what it was taken
    /// from.
    pub(super) fn resumed(&self, mut state: SequenceState) -> SequenceState {
        if self.is_on
            && let Err(error) = state.checkpoint(true)
        {
            tracing::warn!(%error, "a checkpoint could not be taken");
        }
        state
    }
}
