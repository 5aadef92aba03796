//! Texts that outgrow the context: the first tokens and the latest ones stay, those between them go, and positions begin anew behind the
//! first ones, so that none is ever beyond what the model was trained for. Invariant: when it happens depends on the text alone.

use std::ops::Range;

use super::device::Device;
use super::options::Exactness;
use super::request::FinishReason;
use super::runner::Engine;
use super::sequence::{Next, Sequence};
use crate::cache::SequenceState;
use crate::error::Result;

/// A slide lets go of one in so many of the positions that may go: half of them, so that no key is turned more than once before it goes.
const SHARE: usize = 2;

impl Device {
    /// The positions that a cache would let go of to take in one more.
    fn to_drop(&self, cache: &SequenceState, kept: Option<usize>) -> usize {
        match kept {
            Some(kept) if cache.offset() >= self.model.spec().context_length => {
                (cache.offset() - kept) / SHARE
            }
            _ => 0,
        }
    }

    /// Makes room in a full cache whose first `kept` positions stay; without `kept` there is always room.
    pub(super) fn slide_if_full(&self, cache: &mut SequenceState, kept: Option<usize>) -> Result<()> {
        match (kept, self.to_drop(cache, kept)) {
            (Some(kept), dropped @ 1..) => self.model.shift(cache, kept, dropped),
            _ => Ok(()),
        }
    }

    /// How far a sequence's result can be repeated: once it has slid, it is not what it would be with all of its text.
    pub(super) fn exactness_of(&self, sequence: &Sequence) -> Exactness {
        if sequence.history.len() > self.model.spec().context_length {
            Exactness::Approximate
        } else {
            self.exactness()
        }
    }

    /// The tokens that the next pass of a prompt or a replay takes, by their places in the history; none if something else is next. No
    /// pass goes beyond the context.
    pub(super) fn prefill_range(
        &self,
        next: Next,
        cache: &SequenceState,
        kept: Option<usize>,
    ) -> Option<Range<usize>> {
        let (seen, offset) = (cache.seen(), cache.offset() - self.to_drop(cache, kept));
        let end = |length: usize| self.model.spec().context_length.min(offset + length - seen);
        let range = match next {
            Next::Prompt(length) => self.chunks.next(offset, end(length)),
            Next::Replay(length) => offset..end(length).min(offset + self.most_rows()),
            Next::Step | Next::Nothing => return None,
        };
        Some(seen..seen + range.len())
    }
}

impl Engine {
    /// Makes room for a sequence's next step, before anything of that step is on the device: a slide is waited for.
    pub(super) fn slide_if_full(&mut self, id: u64) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let Some(run) = &mut sequence.run else { return };
        if let Err(error) = self.device.slide_if_full(&mut run.cache, sequence.limits.slide) {
            self.end(id, FinishReason::Error(error.to_string()));
        }
    }
}
