//! Plans the prefill of a step: which prompts advance, and by how much. Several prompts advance concurrently, one chunk each in round-robin
//! order, and new prompts do not delay old ones. Invariant: pure.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{Chunk, Next, Prefill, SequenceView};
use super::prefill_budget::{PrefillBudget, work};
use super::shapes::Shapes;

/// The order in which running sequences get chunks. The longest wait comes first.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    positions: BTreeMap<u64, u64>,
    last: u64,
}

impl RoundRobin {
    /// Moves a sequence to the end of the order.
    pub(super) fn push_back(&mut self, id: u64) {
        self.last += 1;
        self.positions.insert(id, self.last);
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.positions.remove(&id);
    }

    fn of(&self, id: u64) -> u64 {
        self.positions.get(&id).copied().unwrap_or(u64::MAX)
    }
}

/// Plans the prefill of one step on a copy of the running sequences, and updates the copy as it plans.
pub(super) struct PrefillPlanner<'a> {
    pub(super) shapes: &'a Shapes,
    pub(super) budget: &'a PrefillBudget,
    pub(super) round_robin: &'a mut RoundRobin,
    pub(super) running: BTreeMap<u64, SequenceView>,
    /// Sequences of lower priority than one that decodes. Their prompts do not finish at once, so that they delay it less.
    pub(super) yielding: BTreeSet<u64>,
}

impl PrefillPlanner<'_> {
    /// Returns the passes of this step: as many as the budget allows if `streams` is true, that is, if sequences decode; otherwise one
    /// pass.
    pub(super) fn plan(mut self, streams: bool) -> Vec<Prefill> {
        let order = self.order();
        let prompts = order.iter().filter(|id| !self.yielding.contains(id));
        let budget = self.budget.budget(prompts.map(|id| self.remaining(*id)));
        let (mut passes, mut spent) = (Vec::new(), 0.0);
        while let Some(&first) = self.order().first() {
            let limit = streams.then_some(budget - spent);
            let Some(pass) = self.pass(first, limit, passes.is_empty()) else { break };
            spent += pass.cost;
            passes.push(pass);
            if !streams {
                break;
            }
        }
        passes
    }

    /// Returns the sequence with an unfinished pass first, then the others in round-robin order.
    fn order(&self) -> Vec<u64> {
        let prefills = self.running.values().filter(|it| it.prefills());
        let mut order: Vec<_> =
            prefills.map(|it| (it.state.layers == 0, self.round_robin.of(it.id), it.id)).collect();
        order.sort_unstable();
        order.into_iter().map(|it| it.2).collect()
    }

    /// Returns the remaining work of a sequence's prompt or replay, or slightly more.
    fn remaining(&self, id: u64) -> f64 {
        let sequence = &self.running[&id];
        let (Next::Prompt(end) | Next::Replay(end)) = sequence.next() else { return 0.0 };
        self.shapes.layers as f64 * work(end - sequence.state.seen, end)
    }

    /// Returns the next pass, with a cost of at most `limit`, or `None` if nothing fits. The `first` pass of a step has at least one layer
    /// regardless of its cost, so that decoding cannot starve a prompt.
    fn pass(&mut self, id: u64, limit: Option<f64>, first: bool) -> Option<Prefill> {
        let mut chunks = vec![self.chunk(id)?];
        let issued = self.running[&id].state.layers;
        let left = self.shapes.layers - issued;
        if issued == 0 {
            self.add_short_prompts(&mut chunks, limit);
            chunks.sort_by_key(|chunk| chunk.id);
        }
        let layer: f64 = chunks.iter().map(|chunk| work(chunk.range.len(), chunk.range.end)).sum();
        let layers = match limit {
            None => left,
            // A shared pass fits as a whole.
            Some(_) if chunks.len() > 1 => left,
            Some(limit) => ((limit / layer) as usize).max(usize::from(first)).min(left),
        };
        if layers == 0 {
            return None;
        }
        for chunk in &chunks {
            self.advance(chunk, issued + layers);
        }
        Some(Prefill { chunks, layers, cost: layers as f64 * layer })
    }

    fn chunk(&self, id: u64) -> Option<Chunk> {
        let sequence = &self.running[&id];
        let range = self.shapes.next_chunk(sequence)?;
        let ends_prompt = sequence.awaits_first_token && sequence.next() == Next::Prompt(range.end);
        let replay = sequence.exact && matches!(sequence.next(), Next::Replay(_));
        Some(Chunk { id, range, replay, ends_prompt })
    }

    /// Adds other prompts to a pass that ends a short prompt. All of them must be inexact, and the whole pass must fit.
    fn add_short_prompts(&self, chunks: &mut Vec<Chunk>, limit: Option<f64>) {
        let shareable = |chunk: &Chunk| {
            let sequence = &self.running[&chunk.id];
            chunk.ends_prompt && !sequence.exact && sequence.state.layers == 0
        };
        if !shareable(&chunks[0]) {
            return;
        }
        let adapter = self.running[&chunks[0].id].adapter;
        let goes_along = |chunk: &Chunk| self.running[&chunk.id].adapter == adapter;
        let cost = |chunk: &Chunk| self.shapes.layers as f64 * work(chunk.range.len(), chunk.range.end);
        let (mut rows, mut spent) = (chunks[0].range.len(), cost(&chunks[0]));
        if limit.is_some_and(|limit| spent > limit) {
            return;
        }
        for id in self.order().into_iter().skip(1) {
            // Stop at the first prompt that cannot share the pass, so that no prompt overtakes another.
            let Some(chunk) = self.chunk(id).filter(shareable).filter(goes_along) else { return };
            rows += chunk.range.len();
            spent += cost(&chunk);
            if rows > self.shapes.chunks.shared_rows() || limit.is_some_and(|limit| spent > limit) {
                return;
            }
            chunks.push(chunk);
        }
    }

    /// Records in the copy that `layers` layers of a chunk are issued. After its chunk, a sequence moves to the end of the order, unless
    /// the remainder of its prompt is short.
    fn advance(&mut self, chunk: &Chunk, layers: usize) {
        let (shapes, id) = (self.shapes, chunk.id);
        let sequence = self.running.get_mut(&id).expect("a chunk belongs to a running sequence");
        if layers < shapes.layers {
            sequence.state.layers = layers;
            return;
        }
        sequence.state = shapes.after(sequence.state, &chunk.range);
        if sequence.reads_hidden || chunk.ends_prompt {
            // Its hidden states are read, or its first token is drawn, before anything else.
            sequence.phase = super::plan::Phase::Blocked;
        }
        if !self.budget.is_short(self.remaining(id)) {
            self.round_robin.push_back(id);
        }
    }
}
