//! Rollback: truncates the history and the state of a sequence together. Invariant: no other code truncates both. Followers of the history
//! detect it through their cursors.

use super::device::Device;
use crate::cache::Rollback;
use crate::engine::sequence::Sequence;

impl Sequence {
    /// Returns to the first `length` tokens, at least 1, as if the others had never existed. At least the last token is left to compute.
    /// Within the prompt of an exact request, the state is truncated to a chunk boundary, so that later tokens get the same bits. A state
    /// that cannot be truncated there returns to a checkpoint or starts over. An unfinished pass is dropped.
    pub(in crate::engine) fn rollback(&mut self, length: usize, device: &Device) {
        self.history.truncate(length.max(1));
        let length = self.history.len();
        let generated = length > self.history.prompt_length();
        let kept = if generated {
            length - 1
        } else {
            device.reusable(length - 1, self.exact(), self.media.undivided())
        };
        let Some(run) = &mut self.run else { return };
        run.pass = None;
        let start_over = !device.fits(&run.state, length)
            || match run.state.rollback(kept.min(run.state.offset())) {
                // The tokens after an earlier checkpoint are recomputed.
                Rollback::Done | Rollback::Earlier(_) => false,
                Rollback::StartOver => true,
            };
        if start_over {
            run.state = device.new_state(length);
        }
    }

    /// Truncates the state to the history after a wrong draft or guess.
    pub(in crate::engine) fn truncate_to_history(&mut self, device: &Device) {
        let length = self.history.len();
        let state = &mut self.running().state;
        // A state that cannot be truncated there is recomputed from an earlier checkpoint.
        if state.rollback((length - 1).min(state.offset())) == Rollback::StartOver {
            *state = device.new_state(length);
        }
        state.record_snapshots(false);
    }
}

#[cfg(test)]
mod tests;
