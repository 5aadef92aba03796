//! The scheduler: it plans every step of the engine. Invariant: pure; it sees ids, lengths, bytes and times, never an array or a token.

mod admission;
pub(super) mod chunks;
mod ledger;
pub(super) mod plan;
mod prefill;
pub(super) mod prefill_budget;
pub(super) mod shapes;
#[cfg(test)]
mod simulation;
pub(super) mod speculation;
pub(super) mod undivided;

use std::collections::BTreeMap;
use std::time::Duration;

use admission::{Admission, Change};
use plan::{Changes, Next, SequenceView, StepPlan};
use prefill::{PrefillPlanner, Turns};
use prefill_budget::PrefillBudget;
use shapes::Shapes;
use speculation::{DraftKind, SpeculationPolicy};

pub(super) use admission::Ticket;
pub(super) use ledger::Ledger;

/// Decides which sequences run, and what each step computes.
#[derive(Debug)]
pub(super) struct Scheduler {
    admission: Admission,
    shapes: Shapes,
    budget: PrefillBudget,
    turns: Turns,
    speculation: SpeculationPolicy,
    /// Whether the last step ran a quarantined sequence alone; then the next one is for the others.
    isolated: bool,
}

impl Scheduler {
    /// For at most `max_running` sequences within `budget` bytes, in passes of these shapes.
    pub(super) fn new(max_running: usize, budget: u64, shapes: Shapes) -> Self {
        Self {
            admission: Admission::new(max_running, budget),
            shapes,
            budget: PrefillBudget::default(),
            turns: Turns::default(),
            speculation: SpeculationPolicy::default(),
            isolated: false,
        }
    }

    /// The reservations.
    pub(super) fn ledger(&self) -> &Ledger {
        self.admission.ledger()
    }

    /// How many sequences wait.
    pub(super) fn waiting(&self) -> usize {
        self.admission.waiting()
    }

    /// How many sequences run.
    pub(super) fn running(&self) -> usize {
        self.admission.running()
    }

    /// All sequences that wait or run.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.admission.ids()
    }

    /// Sets the most rows of exact decode passes, once they are known.
    pub(super) fn set_exact_rows(&mut self, rows: usize) {
        self.shapes.exact_rows = rows;
    }

    /// Queues a sequence that came at `now` and needs `bytes` to start; alone, it must fit.
    pub(super) fn submit(&mut self, id: u64, ticket: Ticket, bytes: u64, now: Duration) {
        self.admission.submit(id, ticket, bytes, now);
    }

    /// Puts a running sequence back into the queue, as after a failed pass.
    pub(super) fn requeue(&mut self, id: u64) {
        self.admission.requeue(id);
        self.turns.remove(id);
    }

    /// Removes a sequence that has ended, wherever it was.
    pub(super) fn remove(&mut self, id: u64) {
        self.admission.remove(id);
        self.turns.remove(id);
        self.speculation.remove(id);
    }

    /// Records the bytes that a running sequence holds; returns what exceeds its reservation.
    pub(super) fn record_used(&mut self, id: u64, bytes: u64) -> u64 {
        self.admission.record_used(id, bytes)
    }

    /// Records the cost of prefill and how long it took, and how many rows a decode step had and how long it took.
    pub(super) fn record(&mut self, prefill: Option<(f64, f64)>, decode: Option<(usize, f64)>) {
        if let Some((cost, seconds)) = prefill {
            self.budget.record_prefill(cost, seconds);
        }
        if let Some((rows, seconds)) = decode {
            self.budget.record_decode(seconds);
            self.speculation.record_time(rows, seconds);
        }
    }

    /// Records that of a sequence's draft so many tokens were verified, and so many of them were right. One that was not verified counts as
    /// one of one token.
    pub(super) fn record_draft(&mut self, id: u64, kind: DraftKind, verified: usize, accepted: usize) {
        self.speculation.record_draft(id, kind, verified, accepted);
    }

    /// Whether for a sequence a draft of one kind is as likely to be right as one of another kind.
    pub(super) fn prefers(&self, id: u64, one: DraftKind, other: DraftKind) -> bool {
        self.speculation.prefers(id, one, other)
    }

    /// How many tokens a model should draft for each of the sequences `ids`, before a step in which `decoding` decode.
    pub(super) fn worth_drafting(&self, decoding: &[SequenceView], ids: &[u64], kind: DraftKind) -> usize {
        match self.step_limit(decoding) {
            Some(limit) => self.speculation.worth_drafting(decoding.len(), limit, ids, kind),
            None => 0,
        }
    }

    /// Records how long a pass of the model that drafts took.
    pub(super) fn record_drafting(&mut self, seconds: f64) {
        self.speculation.record_drafting(seconds);
    }

    /// Decides at `now` which sequences run in the next step. Reservations and queue change at once; the engine carries the changes out.
    pub(super) fn admit(&mut self, sequences: &[SequenceView], now: Duration) -> Changes {
        let mut changes = Changes::default();
        for sequence in sequences.iter().filter(|it| it.growth > 0 && it.next() == Next::Decode) {
            self.grow(sequence, &mut changes);
        }
        for id in &changes.preempt {
            self.turns.remove(*id);
        }
        for change in self.admission.admit(now) {
            match change {
                Change::Preempt(id) => {
                    // It may start again at once, in what another one leaves.
                    self.turns.remove(id);
                    changes.preempt.push(id);
                }
                Change::Start(id) => {
                    self.turns.push_back(id);
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
            changes.preempt.extend(self.admission.grow(sequence.id, sequence.growth));
            changes.grow.push(sequence.id);
        }
    }

    /// What the next step computes, with the sequences as they are after [`Scheduler::admit`].
    pub(super) fn plan(&mut self, sequences: &[SequenceView]) -> StepPlan {
        let mut running: BTreeMap<u64, SequenceView> =
            sequences.iter().filter(|it| it.next() != Next::Nothing).map(|it| (it.id, it.clone())).collect();
        // A stream that does not decode in this step must not wait for more than the budget either.
        let streams = running.values().any(|it| it.next() == Next::Decode);
        self.isolate(&mut running);
        let decoding: Vec<SequenceView> =
            running.values().filter(|it| it.next() == Next::Decode).cloned().collect();
        let drafts = self.verify(&decoding);
        let Self { shapes, budget, turns, .. } = self;
        let prefill = PrefillPlanner { shapes, budget, turns, running }.plan(streams);
        StepPlan { decode: decoding.iter().map(|it| it.id).collect(), drafts, prefill }
    }

    /// How many tokens of the drafts of these sequences their step verifies. It is one pass.
    fn verify(&self, decoding: &[SequenceView]) -> Vec<(u64, usize)> {
        let drafts: Vec<_> =
            decoding.iter().filter(|it| it.draft.length > 0).map(|it| (it.id, it.draft)).collect();
        match self.step_limit(decoding) {
            Some(limit) if !drafts.is_empty() => self.speculation.choose(decoding.len(), limit, &drafts),
            _ => Vec::new(),
        }
    }

    /// The most rows of a step in which these sequences decode; `None` if it is more than one pass.
    fn step_limit(&self, decoding: &[SequenceView]) -> Option<usize> {
        let one_pass = decoding.windows(2).all(|pair| pair[0].adapter == pair[1].adapter);
        let exact = decoding.iter().any(|it| it.exact);
        one_pass.then_some(if exact { self.shapes.exact_rows } else { self.shapes.step_rows })
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
