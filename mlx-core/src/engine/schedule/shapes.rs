//! The shapes of passes: which tokens the next chunk of a sequence takes. Invariant: pure, and a function of the sequence alone.

use std::ops::Range;

use super::plan::{Next, SequenceView, StateView};
use crate::engine::schedule::chunks::Chunks;

/// A context shift drops one in so many of the positions that it may drop: half of them, so that keys are re-rotated only once.
const DROPPED: usize = 2;

/// What limits the shapes of passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Shapes {
    pub(in crate::engine) chunks: Chunks,
    /// Positions that the model attends to.
    pub(in crate::engine) context: usize,
    /// Layers of the model.
    pub(in crate::engine) layers: usize,
    /// The most rows of a decode pass, with those of drafts.
    pub(in crate::engine) step_rows: usize,
    /// The most rows of an exact decode pass.
    pub(in crate::engine) exact_rows: usize,
}

impl Shapes {
    /// The positions that a state of `offset` positions drops to make room for one more.
    pub(in crate::engine) fn to_drop(self, offset: usize, n_keep: Option<usize>) -> usize {
        match n_keep {
            Some(n_keep) if offset >= self.context => (offset - n_keep) / DROPPED,
            _ => 0,
        }
    }

    /// The tokens of the next prefill chunk, as indices into the history; `None` if the sequence has no prefill to do. No pass goes
    /// beyond the context.
    pub(in crate::engine) fn next_chunk(&self, sequence: &SequenceView) -> Option<Range<usize>> {
        let StateView { seen, offset, n_keep, .. } = sequence.state;
        let offset = offset - self.to_drop(offset, n_keep);
        let end = |length: usize| self.context.min(offset + length - seen);
        let range = match sequence.next() {
            // The same rows as the decode steps that made the tokens, so that they get the same bits.
            Next::Replay(length) if sequence.exact => offset..end(length).min(offset + self.exact_rows),
            Next::Prompt(length) => {
                let cut = sequence.cuts.into_iter().filter(|&cut| cut > seen).fold(length, usize::min);
                self.chunks.next(offset, end(cut), &sequence.undivided)
            }
            Next::Replay(length) => self.chunks.next(offset, end(length), &sequence.undivided),
            Next::Decode | Next::Nothing => return None,
        };
        Some(seen..seen + range.len())
    }

    /// The state after `range` was computed.
    pub(in crate::engine) fn after(&self, state: StateView, range: &Range<usize>) -> StateView {
        let offset = state.offset - self.to_drop(state.offset, state.n_keep) + range.len();
        StateView { seen: range.end, offset, layers: 0, ..state }
    }
}
