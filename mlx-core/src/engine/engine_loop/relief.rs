//! What the loop does while the system is short of memory: what is kept for later requests goes, and what runs goes on.

use std::time::Instant;

use super::EngineLoop;
use crate::array;

impl EngineLoop {
    /// Drops all prefixes and features of pictures in memory, those checkpoints of running sequences that only later prompts need, and freed
    /// buffers, if the system is short of memory. Nothing may be pending on the device but what ran ahead.
    pub(super) fn relieve(&mut self) {
        let Some(pressure) = self.pressure.rise(Instant::now()) else { return };
        let kept = self.prefixes.bytes(&self.sequences) + self.encoder_cache.bytes();
        if kept > 0 {
            self.drop_ahead();
            self.prefixes.make_room(&mut self.sequences, 0);
            self.encoder_cache.make_room(0);
            tracing::info!(
                ?pressure,
                bytes = kept,
                "kept prefixes and features of pictures were dropped: the system is short of memory"
            );
        }
        if let Err(error) = array::drop_freed_memory() {
            tracing::warn!(%error, "freed memory cannot be given back");
        }
        self.record_memory();
    }
}
