//! The scheduler: it plans every step of the engine. Invariant: pure; it sees ids, lengths, bytes and times, never an array or a token.

pub(super) mod chunks;
mod ledger;
pub(super) mod plan;
mod prefill;
pub(super) mod prefill_budget;
mod run_queue;
pub(super) mod shapes;
#[cfg(test)]
mod simulation;
pub(super) mod speculation;
pub(super) mod undivided;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use plan::{Changes, Next, SequenceView, StepPlan};
use prefill::{PrefillPlanner, RoundRobin};
use prefill_budget::PrefillBudget;
use run_queue::{Change, RunQueue};
use shapes::Shapes;
use speculation::SpeculationPolicy;

pub(super) use ledger::{Ledger, Need};
pub(super) use run_queue::Ticket;

/// The rows of a decode step.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecodeRows {
    /// One for each sequence.
    pub(super) rows: usize,
    /// The maximum with those of drafts; `None` if the step takes more than one pass, which verifies no drafts.
    pub(super) limit: Option<usize>,
}

/// Decides which sequences run, and what each step computes.
#[derive(Debug)]
pub(super) struct Scheduler {
    run_queue: RunQueue,
    shapes: Shapes,
    budget: PrefillBudget,
    round_robin: RoundRobin,
    /// Whether the last step ran a quarantined sequence alone; then the next one is for the others.
    isolated: bool,
}

impl Scheduler {
    /// For at most `max_running` sequences within `budget` bytes, in passes of these shapes.
    pub(super) fn new(max_running: usize, budget: u64, shapes: Shapes) -> Self {
        Self {
            run_queue: RunQueue::new(max_running, budget),
            shapes,
            budget: PrefillBudget::default(),
            round_robin: RoundRobin::default(),
            isolated: false,
        }
    }

    /// The reservations.
    pub(super) fn ledger(&self) -> &Ledger {
        self.run_queue.ledger()
    }

    /// How many sequences wait.
    pub(super) fn waiting(&self) -> usize {
        self.run_queue.waiting()
    }

    /// How many sequences run.
    pub(super) fn running(&self) -> usize {
        self.run_queue.running()
    }

    /// All sequences that wait or run.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.run_queue.ids()
    }

    /// Sets the most rows of exact decode passes, once they are known.
    pub(super) fn set_exact_rows(&mut self, rows: usize) {
        self.shapes.exact_rows = rows;
    }

    /// Queues a sequence that came at `now` and needs so much to start; alone, it must fit.
    pub(super) fn submit(&mut self, id: u64, ticket: Ticket, need: Need, now: Duration) {
        self.run_queue.submit(id, ticket, need, now);
    }

    /// Puts a running sequence back into the queue, as after a failed pass.
    pub(super) fn requeue(&mut self, id: u64) {
        self.run_queue.requeue(id);
        self.round_robin.remove(id);
    }

    /// Removes a sequence that has ended, wherever it was.
    pub(super) fn remove(&mut self, id: u64) {
        self.run_queue.remove(id);
        self.round_robin.remove(id);
    }

    /// Records the bytes that a running sequence holds; returns what exceeds its reservation.
    pub(super) fn record_used(&mut self, id: u64, bytes: u64) -> u64 {
        self.run_queue.record_used(id, bytes)
    }

    /// Records the cost of a step's prefill with its seconds, and the seconds of its decode passes.
    pub(super) fn record_times(&mut self, prefill: Option<(f64, f64)>, decode: Option<f64>) {
        if let Some((cost, seconds)) = prefill {
            self.budget.record_prefill(cost, seconds);
        }
        if let Some(seconds) = decode {
            self.budget.record_decode(seconds);
        }
    }

    /// Decides at `now` which sequences run in the next step. Reservations and queue change at once; the engine carries the changes out.
    pub(super) fn admit(&mut self, sequences: &[SequenceView], now: Duration) -> Changes {
        let mut changes = Changes::default();
        for sequence in sequences.iter().filter(|it| it.growth.own > 0 && it.next() == Next::Decode) {
            self.grow(sequence, &mut changes);
        }
        for id in &changes.preempt {
            self.round_robin.remove(*id);
        }
        for change in self.run_queue.admit(now) {
            match change {
                Change::Preempt(id) => {
                    // It may start again at once, in what another one leaves.
                    self.round_robin.remove(id);
                    changes.preempt.push(id);
                }
                Change::Start(id) => {
                    self.round_robin.push_back(id);
                    changes.admit.push(id);
                }
            }
        }
        changes
    }

    /// Reserves room for the next token of a sequence. Without room, sequences of a lower rank go back to the queue, or the sequence
    /// itself, which then starts again with the larger reservation.
    fn grow(&mut self, sequence: &SequenceView, changes: &mut Changes) {
        // It may have been preempted for the growth of another one.
        if !changes.preempt.contains(&sequence.id) {
            changes.preempt.extend(self.run_queue.grow(sequence.id, sequence.growth));
            changes.grow.push(sequence.id);
        }
    }

    /// Plans the next step, for the sequences after [`Scheduler::admit`]. The policy decides how much of their drafts it verifies.
    pub(super) fn plan(&mut self, sequences: &[SequenceView], speculation: &SpeculationPolicy) -> StepPlan {
        let mut running: BTreeMap<u64, SequenceView> =
            sequences.iter().filter(|it| it.next() != Next::Nothing).map(|it| (it.id, it.clone())).collect();
        // A stream that does not decode in this step must not wait for more than the budget either.
        let streams = running.values().any(|it| it.next() == Next::Decode);
        self.isolate(&mut running);
        let decoding: Vec<SequenceView> =
            running.values().filter(|it| it.next() == Next::Decode).cloned().collect();
        let drafts = self.verify(&decoding, speculation);
        let Self { shapes, budget, round_robin, .. } = self;
        let prefill = PrefillPlanner { shapes, budget, round_robin, running }.plan(streams);
        StepPlan { decode: decoding.iter().map(|it| it.id).collect(), drafts, prefill }
    }

    /// Returns the number of draft tokens that the step of these sequences verifies, in one pass.
    fn verify(&self, decoding: &[SequenceView], speculation: &SpeculationPolicy) -> Vec<(u64, usize)> {
        let drafts: Vec<_> =
            decoding.iter().filter(|it| it.draft.length > 0).map(|it| (it.id, it.draft)).collect();
        match self.decode_rows(decoding.iter()) {
            DecodeRows { rows, limit: Some(limit) } if !drafts.is_empty() => {
                speculation.choose(rows, limit, &drafts)
            }
            _ => Vec::new(),
        }
    }

    /// Returns the rows of a step in which these sequences decode, before drafts add some.
    pub(super) fn decode_rows<'a>(&self, decoding: impl Iterator<Item = &'a SequenceView>) -> DecodeRows {
        let (mut rows, mut exact, mut adapters) = (0, false, BTreeSet::new());
        for view in decoding {
            rows += 1;
            exact |= view.exact;
            adapters.insert(view.adapter);
        }
        let limit = if exact { self.shapes.exact_rows } else { self.shapes.step_rows };
        DecodeRows { rows, limit: (adapters.len() <= 1).then_some(limit) }
    }

    /// A quarantined sequence runs with nothing beside it, so that what fails is its own. Such steps alternate with steps of the others.
    fn isolate(&mut self, running: &mut BTreeMap<u64, SequenceView>) {
        let alone = running.values().find(|it| it.quarantined).map(|it| it.id);
        let others = running.values().any(|it| !it.quarantined);
        match alone {
            Some(alone) if !(self.isolated && others) => {
                self.isolated = true;
                running.retain(|id, _| *id == alone);
            }
            _ => {
                self.isolated = false;
                running.retain(|_, it| !it.quarantined);
            }
        }
    }
}
