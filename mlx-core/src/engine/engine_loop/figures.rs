//! What the loop records after a step: memory, and how many sequences run and wait.

use std::sync::atomic::Ordering;

use super::EngineLoop;

impl EngineLoop {
    /// Records the memory that is reserved, used and kept, and the state of the queue.
    pub(super) fn record_memory(&mut self) {
        let Self { queue, scheduler, sequences, gauges, .. } = self;
        for (id, sequence) in sequences.iter() {
            let Some(run) = &sequence.run else { continue };
            let excess = scheduler.record_used(id, run.state.bytes() as u64);
            if excess > 0 {
                tracing::warn!(id, excess, "a sequence holds more memory than its reservation");
            }
        }
        let ledger = scheduler.ledger();
        gauges.reserved_bytes.store(self.capacity.fixed + ledger.reserved(), Ordering::Relaxed);
        gauges.used_bytes.store(self.capacity.weights() + ledger.used(), Ordering::Relaxed);
        gauges.prefix_bytes.store(self.prefixes.bytes(sequences), Ordering::Relaxed);
        gauges.prefixes.store(self.prefixes.len(), Ordering::Relaxed);
        gauges.running.store(scheduler.running(), Ordering::Relaxed);
        gauges.paused.store(scheduler.waiting().saturating_sub(queue.len()), Ordering::Relaxed);
        gauges.record_queue(queue.turns(), sequences.iter().filter_map(|(_, it)| it.ran_for()));
    }
}
