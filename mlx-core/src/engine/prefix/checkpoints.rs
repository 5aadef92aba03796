//! Checkpoints of running sequences, for models whose states cannot be truncated. They are placed where a later prompt is likely to differ
//! from this text. They use unreserved memory, like prefixes, and reservations evict them.

use crate::engine::run::device::Device;
use crate::engine::sequence::{Sequence, Sequences};

/// The maximum number of tokens that a chat template writes after the last message and does not repeat in the next prompt.
const TAIL: usize = 16;

impl Sequence {
    /// Plans the checkpoints of a prompt that can reuse `known` positions and shares `common` tokens with a cached text.
    pub(super) fn plan_checkpoints(&mut self, known: usize, common: usize, device: &Device) {
        if !device.needs_checkpoints() || self.reader.is_on() {
            return;
        }
        self.checkpoints.start();
        let last = self.history.prompt_length() - 1;
        self.mark_after(common.min(last), known, device);
        if !self.exact() {
            // Exact requests use the boundaries of their chunks.
            self.mark_after(last.saturating_sub(TAIL), known, device);
        }
    }

    /// Marks the last possible checkpoint at or before `length`, if it is after the `known` positions.
    pub(super) fn mark_after(&mut self, length: usize, known: usize, device: &Device) {
        let place = device.reusable_blocks(length, self.exact(), self.media.undivided());
        if place > known {
            self.checkpoints.mark(place);
        }
    }
}

/// Returns the bytes of the checkpoints of all running sequences.
pub(super) fn bytes(sequences: &Sequences) -> u64 {
    let running = sequences.iter().filter_map(|(_, sequence)| sequence.run.as_ref());
    running.map(|run| run.state.checkpoint_bytes() as u64).sum()
}

/// Drops checkpoints of running sequences until the others take at most `most` bytes. The sequence with the most bytes of checkpoints comes
/// first. Returns the remaining bytes.
pub(super) fn evict_until(sequences: &mut Sequences, most: u64) -> u64 {
    let mut held = self::bytes(sequences);
    while held > most {
        let running = sequences.iter_mut().filter_map(|sequence| sequence.run.as_mut());
        let Some(run) = running.max_by_key(|run| run.state.checkpoint_bytes()) else { break };
        let gone = run.state.evict_checkpoint().map_or_else(|| run.state.drop_checkpoints(), |gone| gone.1);
        if gone == 0 {
            break;
        }
        held -= gone as u64;
    }
    held
}
