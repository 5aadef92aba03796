//! The queue of requests. Each request is one entry, regardless of its number of sequences. Only its next sequence waits in the scheduler.
//! When that sequence starts, the following one joins the end of the scheduler's queue.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine::outlet::Outlet;
use crate::engine::request::CheckedRequest;
use crate::engine::stats::Gauges;

/// One sequence of a checked request, and the receiver of its events.
pub(in crate::engine) struct Submission {
    pub(in crate::engine) request: CheckedRequest,
    pub(in crate::engine) outlet: Outlet,
}

/// The sequences of a request that are not in the scheduler yet. While this value exists, the request counts as waiting.
pub(in crate::engine) struct Unstarted {
    /// The id of the request's first sequence, which identifies the request.
    pub(in crate::engine) request: u64,
    sequences: VecDeque<Submission>,
    gauges: Arc<Gauges>,
}

impl Unstarted {
    pub(in crate::engine) fn new(request: u64, sequences: Vec<Submission>, gauges: Arc<Gauges>) -> Self {
        Self { request, sequences: sequences.into(), gauges }
    }

    /// Takes the next sequence with a connected client.
    pub(in crate::engine) fn pop(&mut self) -> Option<Submission> {
        while let Some(next) = self.sequences.pop_front() {
            self.gauges.waiting_tokens.fetch_sub(next.request.weight(), Ordering::Relaxed);
            if !next.outlet.sink.is_closed() {
                return Some(next);
            }
        }
        None
    }
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        let tokens = self.sequences.iter().map(|it| it.request.weight()).sum();
        self.gauges.waiting_tokens.fetch_sub(tokens, Ordering::Relaxed);
        self.gauges.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Requests that have sequences to start, by the id of their sequence in the scheduler.
#[derive(Default)]
pub(in crate::engine) struct Queue(BTreeMap<u64, Unstarted>);

impl Queue {
    /// Returns the number of requests.
    pub(in crate::engine) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the ids of the sequences that others wait for.
    pub(in crate::engine) fn ids(&self) -> impl Iterator<Item = u64> {
        self.0.keys().copied()
    }

    /// Makes the other sequences of a request wait for `id` to start or end.
    pub(in crate::engine) fn insert(&mut self, id: u64, others: Unstarted) {
        self.0.insert(id, others);
    }

    /// Takes the sequences that wait for `id`.
    pub(in crate::engine) fn remove(&mut self, id: u64) -> Option<Unstarted> {
        self.0.remove(&id)
    }

    /// Returns the number of sequences that start before the shortest request leaves the queue, if the requests are served in turn.
    pub(in crate::engine) fn starts_left(&self) -> usize {
        let left = self.0.values().map(|it| it.sequences.len() + 1);
        let shortest = left.clone().min().unwrap_or(0);
        left.map(|left| left.min(shortest)).sum()
    }
}
