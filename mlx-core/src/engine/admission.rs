//! Admission: decides which requests wait, which sequences run and what each step computes, within the memory of the engine. Invariant: of
//! a sequence it touches its reservation, and its state only to drop it.

mod queue;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use self::queue::Queue;
pub(super) use self::queue::{Submission, Unstarted};
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

/// The next sequence of a request, with its reservation and its rank.
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

    /// Counts a request as waiting. Its first sequence is to line up.
    pub(super) fn receive(&self, sequences: Vec<Submission>) -> Unstarted {
        Unstarted::new(self.last_id + 1, sequences, Arc::clone(&self.gauges))
    }

    /// Takes the sequences that were waiting for `id`, which has started or ended.
    pub(super) fn take_after(&mut self, id: u64) -> Option<Unstarted> {
        self.queue.remove(id)
    }

    /// Takes the next sequence that is to line up.
    pub(super) fn next_candidate(&self, others: &mut Unstarted) -> Option<Candidate> {
        let submission = others.pop()?;
        let request = &submission.request;
        let reservation = self.capacity.initial_reservation(request);
        let ticket = Ticket { client: request.client, request: others.request, priority: request.priority };
        Some(Candidate { submission, reservation, ticket })
    }

    /// Puts a sequence into the scheduler's queue; the others of its request wait for it to start or end.
    pub(super) fn line_up(
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

    /// Decides which sequences run in the next step; [`Admission::apply`] carries it out.
    pub(super) fn decide(&mut self, sequences: &Sequences) -> Changes {
        let changes = self.scheduler.admit(&self.views(sequences), self.start.elapsed());
        tracing::trace!(?changes, "admit");
        changes
    }

    /// Extends reservations, and drops the states of sequences that go back to the queue.
    pub(super) fn apply(&self, changes: &Changes, sequences: &mut Sequences) {
        for &id in &changes.grow {
            self.capacity.extend(&mut sequences.get_mut(id).reservation);
        }
        for &id in &changes.preempt {
            self.preempt(id, sequences);
        }
    }

    /// Plans the next step. The policy decides how much of the drafts it verifies.
    pub(super) fn plan(&mut self, sequences: &Sequences, speculation: &SpeculationPolicy) -> StepPlan {
        let plan = self.scheduler.plan(&self.views(sequences), speculation);
        tracing::trace!(?plan, "step");
        plan
    }

    /// Returns the rows of the next decode step, before drafts add some.
    pub(super) fn decode_rows(&self, sequences: &Sequences) -> DecodeRows {
        let views = self.views(sequences);
        self.scheduler.decode_rows(views.iter().filter(|it| it.next() == Next::Decode))
    }

    /// Records the cost of a step's prefill with its seconds, and the seconds of its decode passes.
    pub(super) fn record_times(&mut self, prefill: Option<(f64, f64)>, decode: Option<f64>) {
        self.scheduler.record_times(prefill, decode);
    }

    /// Puts a running sequence back into the queue. It starts over from its tokens.
    pub(super) fn requeue(&mut self, id: u64, sequences: &mut Sequences) {
        self.scheduler.requeue(id);
        self.preempt(id, sequences);
    }

    /// Puts all running sequences back into the queue.
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

    /// Returns the ids of sequences that do not exist, and that others of their requests wait for.
    pub(super) fn orphaned(&self, sequences: &Sequences) -> Vec<u64> {
        self.queue.ids().filter(|id| sequences.find(*id).is_none()).collect()
    }

    /// The ids in the scheduler: of the sequences that wait or run.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.scheduler.ids()
    }

    /// Bytes that are not reserved.
    pub(super) fn free(&self) -> u64 {
        self.scheduler.ledger().free()
    }

    /// Records the memory that is reserved and used, and the state of the queue.
    pub(super) fn record(&mut self, sequences: &Sequences) {
        let Self { queue, scheduler, capacity, gauges, .. } = self;
        for (id, sequence) in sequences.iter() {
            let Some(run) = &sequence.run else { continue };
            let excess = scheduler.record_used(id, run.state.bytes() as u64);
            if excess > 0 {
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
