//! The scheduler, which plans every step of the engine. Invariant: pure. It handles ids, lengths, bytes and times, never arrays or tokens.

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
use shapes::Shapes;
use speculation::SpeculationPolicy;

pub(super) use ledger::{Ledger, Need};
pub(super) use run_queue::{Change, RunQueue, Ticket, priority_delay};

/// The rows of a decode step.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecodeRows {
    /// One row per sequence.
    pub(super) rows: usize,
    /// The maximum number of rows including drafts; `None` if the step needs more than one pass, since it then verifies no drafts.
    pub(super) limit: Option<usize>,
}

/// Decides which sequences run, and what each step computes.
#[derive(Debug)]
pub(super) struct Scheduler {
    run_queue: RunQueue,
    shapes: Shapes,
    budget: PrefillBudget,
    round_robin: RoundRobin,
    /// True if the last step ran only a quarantined sequence; the next step is then for the others.
    isolated: bool,
}

impl Scheduler {
    /// Creates a scheduler for at most `max_running` sequences within `budget` bytes, in passes of these shapes.
    pub(super) fn new(max_running: usize, budget: u64, shapes: Shapes) -> Self {
        Self {
            run_queue: RunQueue::new(max_running, budget),
            shapes,
            budget: PrefillBudget::default(),
            round_robin: RoundRobin::default(),
            isolated: false,
        }
    }

    /// Returns the reservations.
    pub(super) fn ledger(&self) -> &Ledger {
        self.run_queue.ledger()
    }

    /// Returns the number of waiting sequences.
    pub(super) fn waiting(&self) -> usize {
        self.run_queue.waiting()
    }

    /// Returns the number of running sequences.
    pub(super) fn running(&self) -> usize {
        self.run_queue.running()
    }

    /// Returns the ids of all waiting and running sequences.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.run_queue.ids()
    }

    /// Sets the maximum number of rows of exact decode passes, once it is known.
    pub(super) fn set_exact_rows(&mut self, rows: usize) {
        self.shapes.exact_rows = rows;
    }

    /// Queues a sequence that arrived at `now` and needs `need` bytes to start. It must fit if no other sequence runs.
    pub(super) fn submit(&mut self, id: u64, ticket: Ticket, need: Need, now: Duration) {
        self.run_queue.submit(id, ticket, need, now);
    }

    /// Returns a running sequence to the queue, for example after a failed pass.
    pub(super) fn requeue(&mut self, id: u64) {
        self.run_queue.requeue(id);
        self.round_robin.remove(id);
    }

    /// Removes an ended sequence from the queue or the running sequences.
    pub(super) fn remove(&mut self, id: u64) {
        self.run_queue.remove(id);
        self.round_robin.remove(id);
    }

    /// Records the bytes that a running sequence uses. Returns the bytes beyond its reservation.
    pub(super) fn record_used(&mut self, id: u64, bytes: u64) -> u64 {
        self.run_queue.record_used(id, bytes)
    }

    /// Records the cost and the seconds of a step's prefill, and the seconds of its decode passes.
    pub(super) fn record_times(&mut self, prefill: Option<(f64, f64)>, decode: Option<f64>) {
        if let Some((cost, seconds)) = prefill {
            self.budget.record_prefill(cost, seconds);
        }
        if let Some(seconds) = decode {
            self.budget.record_decode(seconds);
        }
    }

    /// Returns the expected seconds of a step at the measured speed, if all of it was measured.
    pub(super) fn expected(&self, plan: &StepPlan) -> Option<f64> {
        let prefill = plan.prefill.iter().map(|prefill| prefill.cost).sum();
        self.budget.expected(prefill, !plan.decode.is_empty())
    }

    /// Decides at time `now` which sequences run in the next step. Reservations and the queue change at once; the engine applies the
    /// changes.
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
                    // The sequence may start again at once, if another one frees memory.
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

    /// Extends the reservation of a sequence for its next token. If there is no memory, sequences of lower rank return to the queue, or
    /// else the sequence itself, which then restarts with the larger reservation.
    fn grow(&mut self, sequence: &SequenceView, changes: &mut Changes) {
        // The sequence may have been preempted for the growth of another one.
        if !changes.preempt.contains(&sequence.id) {
            changes.preempt.extend(self.run_queue.grow(sequence.id, sequence.growth));
            changes.extend.push(sequence.id);
        }
    }

    /// Plans the next step for the sequences after [`Scheduler::admit`]. The policy decides how many draft tokens it verifies.
    pub(super) fn plan(&mut self, sequences: &[SequenceView], speculation: &SpeculationPolicy) -> StepPlan {
        let mut running: BTreeMap<u64, SequenceView> =
            sequences.iter().filter(|it| it.next() != Next::Nothing).map(|it| (it.id, it.clone())).collect();
        // A sequence that skips decoding in this step must not wait longer than the budget either.
        let streams = running.values().any(|it| it.next() == Next::Decode);
        let yielding = self.yielding(&running);
        self.isolate(&mut running);
        let decoding: Vec<SequenceView> =
            running.values().filter(|it| it.next() == Next::Decode).cloned().collect();
        let drafts = self.verify(&decoding, speculation);
        let Self { shapes, budget, round_robin, .. } = self;
        let prefill = PrefillPlanner { shapes, budget, round_robin, running, yielding }.plan(streams);
        StepPlan { decode: decoding.iter().map(|it| it.id).collect(), drafts, prefill }
    }

    /// Returns the sequences with a lower priority than one that decodes.
    fn yielding(&self, running: &BTreeMap<u64, SequenceView>) -> BTreeSet<u64> {
        let priorities = self.run_queue.priorities();
        let decoding = running.values().filter(|it| it.next() == Next::Decode);
        let highest = decoding.filter_map(|it| priorities.get(&it.id)).max();
        running.keys().copied().filter(|id| priorities.get(id) < highest).collect()
    }

    /// Returns the number of draft tokens to verify for each sequence, in one pass.
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

    /// Returns the rows of a step in which these sequences decode, without draft tokens.
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

    /// Restricts a step to a quarantined sequence, so that a failure can only be its own. Such steps alternate with steps of the other
    /// sequences.
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

#[cfg(test)]
mod tests {
    use super::chunks::Chunks;
    use super::plan::{Phase, StateView};
    use super::prefill_budget::work;
    use super::speculation::DraftView;
    use super::undivided::Undivided;
    use super::*;
    use crate::engine::Priority;

    const PROMPT: usize = 32;
    const LAYERS: usize = 10;

    fn view(id: u64, length: usize, seen: usize) -> SequenceView {
        SequenceView {
            id,
            phase: Phase::Running,
            prompt: PROMPT,
            length,
            state: StateView { seen, offset: seen, layers: 0, n_keep: None },
            forced_boundaries: [0; 2],
            undivided: Undivided::default(),
            growth: Need::default(),
            exact: false,
            adapter: 0,
            reads_hidden: false,
            awaits_first_token: seen == 0,
            quarantined: false,
            draft: DraftView::default(),
        }
    }

    /// A prompt that takes the time of four steps finishes in one, unless a sequence of higher priority decodes.
    #[test]
    fn a_prompt_of_lower_priority_delays_a_stream_by_half_a_step() {
        let shapes =
            Shapes { chunks: Chunks::ON_A_CPU, context: 1024, layers: LAYERS, step_rows: 8, exact_rows: 8 };
        let views = [view(1, PROMPT + 1, PROMPT), view(2, PROMPT, 0)];
        for (stream, prompt, layers) in [
            (Priority::Normal, Priority::Normal, LAYERS),
            (Priority::Normal, Priority::Low, 1),
            (Priority::Low, Priority::Low, LAYERS),
            (Priority::Low, Priority::High, LAYERS),
            (Priority::High, Priority::Normal, 1),
        ] {
            let mut scheduler = Scheduler::new(8, 1 << 30, shapes);
            for (id, priority) in [(1, stream), (2, prompt)] {
                let ticket = Ticket { request: id, priority, ..Ticket::default() };
                scheduler.submit(id, ticket, Need::default(), Duration::ZERO);
            }
            assert_eq!(scheduler.admit(&views, Duration::ZERO).admit.len(), 2);
            scheduler.record_times(Some((work(PROMPT, PROMPT) * LAYERS as f64, 0.04)), Some(0.01));
            let plan = scheduler.plan(&views, &SpeculationPolicy::default());
            assert_eq!((plan.decode, plan.prefill[0].layers), (vec![1], layers), "{stream:?} {prompt:?}");
        }
    }
}
