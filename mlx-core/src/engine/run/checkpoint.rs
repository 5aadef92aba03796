//! Takes checkpoints of prompts during the prefill.

use super::device::Device;
use crate::cache::BLOCK;
use crate::engine::sequence::Sequence;
use crate::error::Result;

impl Sequence {
    /// Takes a checkpoint after a chunk of the prompt, if one may be taken at this length and `room` bytes remain. Returns the bytes that
    /// then remain.
    pub(in crate::engine) fn take_checkpoint(&mut self, device: &Device, room: u64) -> Result<u64> {
        let (exact, prompt) = (self.exact(), self.history.prompt_length());
        let is_on = self.checkpoints.is_on() && room > 0;
        let Some(run) = self.run.as_mut().filter(|_| is_on) else { return Ok(room) };
        let length = run.state.offset();
        let marked = self.checkpoints.is_marked(length);
        let keeps_bits = !exact || device.chunk_boundary(length, self.media.undivided()) == length;
        if !length.is_multiple_of(BLOCK) || !keeps_bits || length > prompt {
            return Ok(room);
        }
        let before = run.state.checkpoint_bytes();
        run.state.checkpoint(marked)?;
        Ok(room.saturating_sub(run.state.checkpoint_bytes().saturating_sub(before) as u64))
    }
}
