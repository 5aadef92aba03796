//! Decides which requests wait, which sequences run and what each step computes, within the engine's memory. Invariant: it changes only the
//! reservation of a sequence, and its state only to drop it.

mod queue;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

pub(super) use self::queue::{Queue, Submission, Unstarted};
use super::capacity::{Capacity, Reservation};
use super::schedule::plan::{Changes, Next, SequenceView, StepPlan};
use super::schedule::shapes::Shapes;
use super::schedule::speculation::SpeculationPolicy;
use super::schedule::{DecodeRows, Need, Scheduler, Ticket};
use super::sequence::{Sequence, Sequences};
use super::stats::Gauges;

/// The queue, the scheduler and the reservations.
pub(super) struct Admission {
    queue: Queue,
    scheduler: Scheduler,
    capacity: Capacity,
    gauges: Arc<Gauges>,
    start: Instant,
    last_id: u64,
}

/// The next sequence of a request, with its reservation and its position in the queue.
pub(super) struct Candidate {
    pub(super) submission: Submission,
    pub(super) reservation: Reservation,
    pub(super) ticket: Ticket,
}

impl Admission {
    pub(super) fn new(capacity: Capacity, max_running: usize, shapes: Shapes, gauges: Arc<Gauges>) -> Self {
        let scheduler = Scheduler::new(max_running, capacity.shared(), shapes);
        Self { queue: Queue::default(), scheduler, capacity, gauges, start: Instant::now(), last_id: 0 }
    }

    /// Creates the queue entry of a request, which counts as waiting. Its sequences are not in the scheduler yet.
    pub(super) fn receive(&self, sequences: Vec<Submission>) -> Unstarted {
        Unstarted::new(self.last_id + 1, sequences, Arc::clone(&self.gauges))
    }

    /// Takes the sequences that wait for `id` to start or end.
    pub(super) fn take_waiting_for(&mut self, id: u64) -> Option<Unstarted> {
        self.queue.remove(id)
    }

    /// Takes the next sequence for the scheduler.
    pub(super) fn next_candidate(&self, others: &mut Unstarted) -> Option<Candidate> {
        let submission = others.pop()?;
        let request = &submission.request;
        let reservation = self.capacity.initial_reservation(request);
        let ticket = Ticket { client: request.client, request: others.request, priority: request.priority };
        Some(Candidate { submission, reservation, ticket })
    }

    /// Puts a sequence into the scheduler's queue. The other sequences of its request wait for it to start or end.
    pub(super) fn enqueue(
        &mut self,
        sequence: Sequence,
        ticket: Ticket,
        others: Unstarted,
        sequences: &mut Sequences,
    ) {
        self.last_id += 1;
        self.scheduler.submit(self.last_id, ticket, sequence.reservation.need, self.start.elapsed());
        sequences.insert(self.last_id, sequence);
        self.queue.insert(self.last_id, others);
    }

    /// Sets the maximum number of rows of an exact decode pass, once it is known.
    pub(super) fn set_exact_rows(&mut self, rows: usize) {
        self.scheduler.set_exact_rows(rows);
    }

    /// Decides which sequences run in the next step; [`Admission::apply`] applies the decision.
    pub(super) fn decide(&mut self, sequences: &Sequences) -> Changes {
        let changes = self.scheduler.admit(&self.views(sequences), self.start.elapsed());
        tracing::trace!(?changes, "admit");
        changes
    }

    /// Extends reservations, and drops the states of sequences that go back to the queue.
    pub(super) fn apply(&self, changes: &Changes, sequences: &mut Sequences) {
        for &id in &changes.extend {
            self.capacity.extend(&mut sequences.get_mut(id).reservation);
        }
        for &id in &changes.preempt {
            self.preempt(id, sequences);
        }
    }

    /// Plans the next step. The policy decides how many draft tokens it verifies.
    pub(super) fn plan(&mut self, sequences: &Sequences, speculation: &SpeculationPolicy) -> StepPlan {
        let plan = self.scheduler.plan(&self.views(sequences), speculation);
        tracing::trace!(?plan, "step");
        plan
    }

    /// Returns the expected seconds of a step, if all of it was measured.
    pub(super) fn expected(&self, plan: &StepPlan) -> Option<f64> {
        self.scheduler.expected(plan)
    }

    /// Returns the rows of the next decode step, without draft tokens.
    pub(super) fn decode_rows(&self, sequences: &Sequences) -> DecodeRows {
        let views = self.views(sequences);
        self.scheduler.decode_rows(views.iter().filter(|it| it.next() == Next::Decode))
    }

    /// Records the cost and the seconds of a step's prefill, and the seconds of its decode passes.
    pub(super) fn record_times(&mut self, prefill: Option<(f64, f64)>, decode: Option<f64>) {
        self.scheduler.record_times(prefill, decode);
    }

    /// Returns a running sequence to the queue. It restarts from its tokens.
    pub(super) fn requeue(&mut self, id: u64, sequences: &mut Sequences) {
        self.scheduler.requeue(id);
        self.preempt(id, sequences);
    }

    /// Returns all running sequences to the queue.
    pub(super) fn requeue_all(&mut self, sequences: &mut Sequences) {
        for id in self.scheduler.ids() {
            self.scheduler.requeue(id);
        }
        for id in sequences.running() {
            self.preempt(id, sequences);
        }
    }

    /// Removes a sequence that has ended.
    pub(super) fn remove(&mut self, id: u64) {
        self.scheduler.remove(id);
    }

    /// Returns the ids of ended sequences that other sequences of their requests still wait for.
    pub(super) fn orphaned(&self, sequences: &Sequences) -> Vec<u64> {
        self.queue.ids().filter(|id| sequences.find(*id).is_none()).collect()
    }

    /// Returns the ids in the scheduler, of waiting and running sequences.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.scheduler.ids()
    }

    /// Returns the bytes that are not reserved.
    pub(super) fn free(&self) -> u64 {
        self.scheduler.ledger().free()
    }

    /// Records the reserved and used memory, and the state of the queue.
    pub(super) fn record(&mut self, sequences: &Sequences) {
        let Self { queue, scheduler, capacity, gauges, .. } = self;
        for (id, sequence) in sequences.iter() {
            let Some(run) = &sequence.run else { continue };
            let excess = scheduler.record_used(id, run.state.bytes() as u64);
            if excess > 0 {
                let _request = sequence.outlet.span.enter();
                tracing::warn!(id, excess, "a sequence holds more memory than its reservation");
            }
        }
        let ledger = scheduler.ledger();
        gauges.reserved_bytes.store(capacity.fixed + ledger.reserved(), Ordering::Relaxed);
        gauges.used_bytes.store(capacity.weights() + ledger.used(), Ordering::Relaxed);
        gauges.running.store(scheduler.running(), Ordering::Relaxed);
        gauges.paused.store(scheduler.waiting().saturating_sub(queue.len()), Ordering::Relaxed);
        gauges.record_queue(queue.starts_left(), sequences.iter().filter_map(|(_, it)| it.ran_for()));
    }

    fn views(&self, sequences: &Sequences) -> Vec<SequenceView> {
        let view = |(id, sequence): (u64, &Sequence)| {
            let covered = sequence.history.len() < sequence.reservation.tokens;
            let growth = if covered {
                Need::default()
            } else {
                self.capacity.extend(&mut sequence.reservation.clone())
            };
            sequence.view(id, growth)
        };
        sequences.iter().map(view).collect()
    }

    fn preempt(&self, id: u64, sequences: &mut Sequences) {
        sequences.get_mut(id).run = None;
        Gauges::add(&self.gauges.preemptions, 1);
    }
}
