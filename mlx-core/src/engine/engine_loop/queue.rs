//! The queue of requests: each is one entry, however many sequences it has. Only its next sequence waits in the scheduler; as that starts, the
//! one after it lines up, behind what has come meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::EngineLoop;
use crate::engine::event::FinishReason;
use crate::engine::output::finish;
use crate::engine::request::GenerationRequest;
use crate::engine::schedule::Ticket;
use crate::engine::sequence::{Outlet, Sequence};
use crate::engine::stats::Gauges;

/// One sequence of a request that was checked, and where its events go.
pub(in crate::engine) struct Submission {
    pub(in crate::engine) request: GenerationRequest,
    pub(in crate::engine) outlet: Outlet,
}

/// The requests that have not started all of their sequences.
#[derive(Default)]
pub(super) struct Queue(BTreeMap<u64, Rest>);

/// The sequences of a request after the one in the scheduler's queue. While this value exists, the request counts as waiting.
struct Rest {
    /// The request, by the id of its first sequence.
    request: u64,
    sequences: VecDeque<Submission>,
    gauges: Arc<Gauges>,
}

impl Drop for Rest {
    fn drop(&mut self) {
        let tokens = self.sequences.iter().map(|it| it.request.weight()).sum();
        self.gauges.waiting_tokens.fetch_sub(tokens, Ordering::Relaxed);
        self.gauges.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Queue {
    /// The number of requests.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The ids of the sequences that others of their requests wait for.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.0.keys().copied().collect()
    }

    /// How many sequences will start until the shortest request has started all of its own, if all requests take turns.
    pub(super) fn turns(&self) -> usize {
        let left = self.0.values().map(|rest| rest.sequences.len() + 1);
        let shortest = left.clone().min().unwrap_or(0);
        left.map(|left| left.min(shortest)).sum()
    }
}

impl EngineLoop {
    /// Queues a request.
    pub(super) fn queue(&mut self, sequences: Vec<Submission>) {
        let gauges = Arc::clone(&self.gauges);
        self.line_up(Rest { request: self.last_id + 1, sequences: sequences.into(), gauges });
    }

    /// Lines up the sequence behind `id`, which has started or ended; false if there is none.
    pub(super) fn line_up_after(&mut self, id: u64) -> bool {
        self.queue.0.remove(&id).is_some_and(|rest| self.line_up(rest))
    }

    /// Lines up the next sequence of a request; false if there is none, and the request leaves the queue.
    fn line_up(&mut self, mut rest: Rest) -> bool {
        while let Some(Submission { request, outlet }) = rest.sequences.pop_front() {
            self.gauges.waiting_tokens.fetch_sub(request.weight(), Ordering::Relaxed);
            if outlet.sink.is_closed() {
                continue;
            }
            let (client, priority, exact) = (request.client, request.priority, request.limits.exact);
            let adapter = request.limits.adapter;
            let reservation = self.capacity.initial_reservation(&request);
            let drafts = self.drafters.for_sequence(request.limits.owner, request.limits.speculate);
            let mut sequence = Sequence::new(request, outlet, reservation, &self.folder);
            sequence.number_pictures(|image| self.encoder_cache.number(image));
            sequence.drafts = drafts;
            let nothing_to_do = sequence.limits.max_tokens == 0 && !sequence.reader.is_on();
            if nothing_to_do || sequence.is_cancelled() {
                let reason = if nothing_to_do { FinishReason::Length } else { FinishReason::Cancelled };
                finish(&mut sequence, reason, self.device.exactness(adapter, exact));
                Gauges::add(&self.gauges.finished, 1);
                continue;
            }
            if exact {
                self.scheduler.set_exact_rows(self.device.exact_rows(adapter));
            }
            self.last_id += 1;
            let ticket = Ticket { client, request: rest.request, priority };
            self.scheduler.submit(self.last_id, ticket, reservation.bytes, self.start.elapsed());
            self.sequences.insert(self.last_id, sequence);
            self.queue.0.insert(self.last_id, rest);
            return true;
        }
        false
    }
}
