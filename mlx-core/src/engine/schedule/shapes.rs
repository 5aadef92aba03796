//! The shapes of passes: the tokens in the next chunk of a sequence. Invariant: pure, and depends only on the sequence.

use std::ops::Range;

use super::plan::{Next, SequenceView, StateView};
use crate::engine::schedule::chunks::Chunks;

/// A context shift drops one in this many of the positions that it may drop: half of them, so that keys are rotated again only once.
const DROPPED: usize = 2;

/// The limits on the shapes of passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Shapes {
    pub(in crate::engine) chunks: Chunks,
    /// The maximum number of positions that the model attends to.
    pub(in crate::engine) context: usize,
    /// The number of layers of the model.
    pub(in crate::engine) layers: usize,
    /// The maximum number of rows of a decode pass, including draft rows.
    pub(in crate::engine) step_rows: usize,
    /// The maximum number of rows of an exact decode pass.
    pub(in crate::engine) exact_rows: usize,
}

impl Shapes {
    /// Returns the number of positions that a state of `offset` positions must drop before one more is added.
    pub(in crate::engine) fn to_drop(self, offset: usize, n_keep: Option<usize>) -> usize {
        match n_keep {
            Some(n_keep) if offset >= self.context => (offset - n_keep) / DROPPED,
            _ => 0,
        }
    }

    /// Returns the tokens of the next prefill chunk as indices into the history, or `None` if the sequence has nothing to prefill. No pass
    /// exceeds the context.
    pub(in crate::engine) fn next_chunk(&self, sequence: &SequenceView) -> Option<Range<usize>> {
        let StateView { seen, offset, n_keep, .. } = sequence.state;
        let offset = offset - self.to_drop(offset, n_keep);
        let end = |length: usize| self.context.min(offset + length - seen);
        let range = match sequence.next() {
            // Use the rows of the decode steps that drew the tokens, so that the bits are the same.
            Next::Replay(length) if sequence.exact => offset..end(length).min(offset + self.exact_rows),
            Next::Prompt(length) => {
                let cut =
                    sequence.forced_boundaries.into_iter().filter(|&cut| cut > seen).fold(length, usize::min);
                self.chunks.next(offset, end(cut), &sequence.undivided)
            }
            Next::Replay(length) => self.chunks.next(offset, end(length), &sequence.undivided),
            Next::Decode | Next::Nothing => return None,
        };
        Some(seen..seen + range.len())
    }

    /// Returns the state after `range` is computed.
    pub(in crate::engine) fn after(&self, state: StateView, range: &Range<usize>) -> StateView {
        let offset = state.offset - self.to_drop(state.offset, state.n_keep) + range.len();
        StateView { seen: range.end, offset, layers: 0, ..state }
    }
}
