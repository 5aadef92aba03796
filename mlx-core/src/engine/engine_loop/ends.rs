//! The part of the loop that emits tokens and ends sequences.

use super::EngineLoop;
use crate::engine::event::FinishReason;
use crate::engine::output::{emit, finish};
use crate::engine::prefix::Prefixes;

impl EngineLoop {
    /// Emits the accepted tokens, and ends the sequences whose last token it was.
    pub(super) fn emit(&mut self) {
        while let Some(accepted) = self.accepted.pop_front() {
            let id = accepted.id;
            // It may have failed or been cancelled since.
            if self.sequences.find(id).is_none() {
                continue;
            }
            self.panics.alone = Some(id);
            if let Some(reason) = emit(self.sequences.get_mut(id), accepted) {
                self.end(id, reason);
            }
            self.panics.alone = None;
        }
    }

    /// Ends the sequences whose clients have gone.
    pub(super) fn end_cancelled(&mut self) {
        let cancelled = self.sequences.iter().filter(|(_, sequence)| sequence.is_cancelled());
        let cancelled: Vec<u64> = cancelled.map(|(id, _)| id).collect();
        if !cancelled.is_empty() {
            self.drop_ahead();
        }
        for id in cancelled {
            // What ran ahead of it may have failed.
            if self.sequences.find(id).is_some() {
                self.end(id, FinishReason::Cancelled);
            }
        }
        self.retire();
    }

    /// Ends a sequence, wherever it is.
    pub(super) fn end(&mut self, id: u64, reason: FinishReason) {
        let mut sequence = self.sequences.remove(id);
        if let FinishReason::Error(message) = &reason {
            tracing::debug!(message, "a sequence failed");
            self.record_outage();
        }
        self.scheduler.remove(id);
        self.line_up_after(id);
        self.gauges.record_end(&sequence.usage(), &sequence.timings());
        let exactness =
            self.device.exactness_at(sequence.history.len(), sequence.adapter(), sequence.exact());
        let failed = matches!(reason, FinishReason::Error(_));
        finish(&mut sequence, reason, exactness);
        if !failed {
            if sequence.drafts.is_some() {
                self.drafters.learn(sequence.limits.owner, sequence.history.generated());
            }
            self.retired.push(sequence);
        }
    }

    /// Keeps the states of ended sequences for later requests. Nothing may be pending on the device.
    pub(super) fn retire(&mut self) {
        for sequence in std::mem::take(&mut self.retired) {
            let free = self.free_for_prefixes();
            let free = Prefixes::left(&self.sequences, free);
            self.prefixes.keep(sequence, &self.device, &self.capacity, free);
        }
    }
}
