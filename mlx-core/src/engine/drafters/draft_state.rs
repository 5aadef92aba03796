//! What a sequence keeps for the model that drafts for it.

use crate::cache::SequenceState;

/// What a sequence keeps for the model that drafts for it.
pub(in crate::engine) struct DraftState {
    pub(in crate::engine) state: SequenceState,
    /// The place in the text of the first token that the state has seen.
    pub(in crate::engine) base: usize,
    /// How many tokens it saw with the hidden states of the engine's model; those of drafts come from the head itself.
    pub(in crate::engine) read: usize,
}

impl DraftState {
    /// The place in the text of the next token that it reads.
    pub(in crate::engine) fn next(&self) -> usize {
        self.base + self.state.offset()
    }
}
