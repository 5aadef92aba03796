//! The life cycle of a sequence: it is queued, its tokens are emitted, it restarts after a fault, it ends, and its state is cached.

use super::EngineLoop;
use crate::engine::admission::{Candidate, Submission, Unstarted};
use crate::engine::event::FinishReason;
use crate::engine::output::{emit, finish, replay};
use crate::engine::run::executor::Fault;
use crate::engine::run::runner::Failure;
use crate::engine::sequence::Sequence;

impl EngineLoop {
    /// Queues a request.
    pub(super) fn queue(&mut self, sequences: Vec<Submission>) {
        let waiting = self.admission.receive(sequences);
        self.enqueue(waiting);
    }

    /// Puts the sequence that waits for `id` to start or end into the scheduler's queue. Returns false if there is none.
    pub(super) fn enqueue_after(&mut self, id: u64) -> bool {
        self.admission.take_waiting_for(id).is_some_and(|waiting| self.enqueue(waiting))
    }

    /// Puts the next sequence of a request into the scheduler's queue. Returns false if there is none; the request then stops waiting.
    fn enqueue(&mut self, mut waiting: Unstarted) -> bool {
        while let Some(Candidate { submission, reservation, ticket }) =
            self.admission.next_candidate(&mut waiting)
        {
            let Submission { mut request, outlet } = submission;
            let earlier = std::mem::take(&mut request.resume.tokens);
            let mut sequence = Sequence::new(request, outlet, reservation, &self.folder);
            replay(&mut sequence, &earlier);
            self.runner.number_media(&mut sequence);
            self.speculation.prepare(&mut sequence);
            let (adapter, exact) = (sequence.adapter(), sequence.exact());
            let nothing_to_do = sequence.limits.max_tokens == 0 && !sequence.reader.is_on();
            let ended = sequence.ended.clone().or_else(|| nothing_to_do.then_some(FinishReason::Length));
            if ended.is_some() || sequence.is_cancelled() {
                let exactness = self.runner.device().exactness_at(sequence.history.len(), adapter, exact);
                self.gauges.record_end(&sequence.usage(), &sequence.timings());
                finish(&mut sequence, ended.unwrap_or(FinishReason::Cancelled), exactness);
                continue;
            }
            if exact {
                self.admission.set_exact_rows(self.runner.device().exact_rows(adapter));
            }
            self.admission.enqueue(sequence, ticket, waiting, &mut self.sequences);
            return true;
        }
        false
    }

    /// Emits the accepted tokens, and ends each sequence at its last token.
    pub(super) fn emit(&mut self) {
        while let Some(accepted) = self.accepted.pop_front() {
            let id = accepted.id;
            // The sequence may have failed or been cancelled since.
            if self.sequences.find(id).is_none() {
                continue;
            }
            self.panics.single = Some(id);
            if let Some(reason) = emit(self.sequences.get_mut(id), accepted) {
                self.end(id, reason);
            }
            self.panics.single = None;
        }
    }

    /// Ends sequences that were cancelled or whose clients disconnected.
    pub(super) fn end_cancelled(&mut self) {
        let cancelled = self.sequences.iter().filter(|(_, sequence)| sequence.is_cancelled());
        let cancelled: Vec<u64> = cancelled.map(|(id, _)| id).collect();
        if !cancelled.is_empty() {
            self.drop_lookahead();
        }
        for id in cancelled {
            // The step that began early may have failed.
            if self.sequences.find(id).is_some() {
                self.end(id, FinishReason::Cancelled);
            }
        }
        self.retire();
    }

    /// Recomputes the sequences of a failed pass one by one, so that the sequence at fault ends and the others continue.
    pub(super) fn recover(&mut self, fault: Option<Fault>) {
        let Some(Fault { ids, message }) = fault else { return };
        // In an engine's process, the report of the loss precedes the ends of sequences, which then continue in the next process.
        if let Some(machines) = self.runner.device().other_machines() {
            machines.fail(&message);
        }
        let present: Vec<u64> = ids.into_iter().filter(|id| self.sequences.find(*id).is_some()).collect();
        for &id in &present {
            let sequence = self.sequences.get_mut(id);
            if sequence.quarantined || present.len() == 1 {
                self.end(id, FinishReason::Error(message.clone()));
            } else {
                sequence.quarantined = true;
                self.admission.requeue(id, &mut self.sequences);
            }
        }
    }

    /// Ends sequences that failed.
    pub(super) fn fail(&mut self, failures: Vec<Failure>) {
        for Failure { id, error } in failures {
            self.end(id, FinishReason::Error(error.to_string()));
        }
    }

    /// Ends a running or waiting sequence.
    pub(super) fn end(&mut self, id: u64, reason: FinishReason) {
        let mut sequence = self.sequences.remove(id);
        let _request = sequence.outlet.span.clone().entered();
        if let FinishReason::Error(message) = &reason {
            tracing::debug!(message, "a sequence failed");
        }
        self.admission.remove(id);
        self.speculation.remove(id);
        self.enqueue_after(id);
        self.gauges.record_end(&sequence.usage(), &sequence.timings());
        let (length, adapter, exact) = (sequence.history.len(), sequence.adapter(), sequence.exact());
        let exactness = self.runner.device().exactness_at(length, adapter, exact);
        let failed = matches!(reason, FinishReason::Error(_));
        finish(&mut sequence, reason, exactness);
        if !failed {
            self.speculation.learn(&sequence);
            self.retired.push(sequence);
        }
    }

    /// Stores the states of ended sequences in the prefix cache. Nothing may be pending on the device.
    pub(super) fn retire(&mut self) {
        if self.retired.is_empty() {
            return;
        }
        let (retired, free) = (std::mem::take(&mut self.retired), self.free_for_prefixes());
        self.prefixes.store_ended(retired, &self.sequences, free, self.runner.device());
    }
}
