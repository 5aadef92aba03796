//! Rollback: history and state of a sequence are cut together. Invariant: nothing else cuts both; what follows the history
//! detects the cut by itself.

use super::device::Device;
use super::sequence::Sequence;
use crate::cache::Rollback;

impl Sequence {
    /// Cuts the sequence back to its first `length` tokens, at least 1. At least the last token is left to be computed; inside a
    /// prompt, everything from the last chunk boundary on, so that shapes, and with them bits, are those of a straight run. A state
    /// that cannot be cut there goes back to a checkpoint or starts over. Passes of this sequence that have begun are discarded.
    pub(super) fn rewind(&mut self, length: usize, device: &Device) {
        self.history.truncate(length.max(1));
        let before = self.history.len() - 1;
        let generated = self.history.len() > self.history.prompt_length();
        let kept = if generated { before } else { device.reusable(before) };
        let length = self.history.len();
        let Some(run) = &mut self.run else { return };
        run.pass = None;
        let start_over = run.cache.variant() != device.variant(length)
            || match run.cache.rollback(kept.min(run.cache.offset())) {
                // From an earlier checkpoint the tokens in between are computed again.
                Rollback::Done | Rollback::Earlier(_) => false,
                Rollback::StartOver => true,
            };
        if start_over {
            run.cache = device.new_state(length);
        }
    }
}

#[cfg(test)]
mod tests;
