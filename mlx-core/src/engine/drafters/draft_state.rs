//! The draft model's state of a sequence.

use crate::cache::SequenceState;

/// The draft model's state of a sequence.
pub(in crate::engine) struct DraftState {
    pub(in crate::engine) state: SequenceState,
    /// The position in the text of the first token that the state includes.
    pub(in crate::engine) base: usize,
    /// The number of tokens computed from hidden states of the engine's model. Hidden states of draft tokens come from the head itself.
    pub(in crate::engine) read: usize,
}

impl DraftState {
    /// Returns the position in the text of the next token to process.
    pub(in crate::engine) fn next(&self) -> usize {
        self.base + self.state.offset()
    }
}
