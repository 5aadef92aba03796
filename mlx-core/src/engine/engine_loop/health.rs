//! Handles memory pressure, and ends all sequences after a failure of the engine.

use std::time::Instant;

use super::EngineLoop;
use crate::array;
use crate::engine::event::FinishReason;

impl EngineLoop {
    /// If the system is short of memory, drops prefixes and features of pictures in memory, freed buffers, and checkpoints of running
    /// sequences that only later prompts need. Running sequences continue. Nothing may be pending on the device except the first layers of
    /// the next step.
    pub(super) fn free_memory(&mut self) {
        let Some(pressure) = self.pressure.poll_if_due(Instant::now()) else { return };
        let bytes = self.prefixes.bytes(&self.sequences) + self.runner.feature_bytes();
        if bytes > 0 {
            self.drop_lookahead();
            self.prefixes.shrink_to_fit(&mut self.sequences, 0);
            self.runner.shrink_features(0);
            tracing::info!(
                ?pressure,
                bytes,
                "cached prefixes and features of pictures were dropped: the system is short of memory"
            );
        }
        if let Err(error) = array::drop_freed_memory() {
            tracing::warn!(%error, "cannot return freed memory to the system");
        }
        self.record_memory();
    }

    /// Ends all sequences, including the waiting ones, and drops all states.
    pub(super) fn fail_all(&mut self, message: &str) {
        self.runner.abandon_lookahead();
        // Accepted tokens were drawn from complete passes.
        self.emit();
        loop {
            // When a sequence ends, the next one of its request takes its position in the queue.
            let first = self.sequences.iter().map(|(id, _)| id).next();
            let Some(id) = first else { break };
            self.end(id, FinishReason::Error(message.to_owned()));
        }
        self.retired.clear();
        self.prefixes.clear();
        self.record_memory();
    }
}
