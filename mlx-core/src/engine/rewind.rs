//! The way back: history and cache of a sequence are cut together. Invariant: nothing else cuts both; whatever follows the history
//! notices by itself.

use super::device::Device;
use super::sequence::Sequence;

impl Sequence {
    /// Goes back to the first `length` tokens, at least 1, as if the others had never been. At least the last token is left to be
    /// computed, and in a prompt everything from the last place on that a prompt may be taken over up to: the same shapes, and so the
    /// same bits, as on the way here. A cache that cannot be cut there is given up. What is on the device for
    /// this sequence is of no use any more.
    pub(super) fn rewind(&mut self, length: usize, device: &Device) {
        self.history.truncate(length.max(1));
        let before = self.history.len() - 1;
        let generated = self.history.len() > self.history.prompt_length();
        let kept = if generated { before } else { device.reusable(before) };
        let length = self.history.len();
        let Some(run) = &mut self.run else { return };
        run.pass = None;
        let fits = run.cache.is_beyond() == device.model.spec().is_beyond(length);
        if !fits || !run.cache.truncate(kept.min(run.cache.offset())) {
            run.cache = device.new_cache_for(length);
        }
    }
}

#[cfg(test)]
mod tests;
