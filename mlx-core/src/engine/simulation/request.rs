//! The random requests of the simulation, and what is noted of each.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::engine::options::Priority;
use crate::engine::sequence::Next;
use crate::sampling::{Stream, uniform};

/// Small, so that promises are extended often.
pub(super) const GROWTH: usize = 8;

pub(super) struct Random(pub(super) u64, pub(super) u64);

impl Random {
    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        self.1 += 1;
        low + (high - low) * uniform(self.0, self.1, Stream::Draw)
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        self.between(0.0, end as f64) as usize
    }
}

pub(super) const fn need(tokens: usize) -> u64 {
    40 + 3 * tokens as u64
}

/// A request, and what becomes of it.
#[derive(Default)]
pub(super) struct Sequence {
    pub(super) id: u64,
    pub(super) priority: Priority,
    pub(super) came: f64,
    pub(super) rank: (Duration, u64),
    pub(super) cancelled: f64,
    pub(super) prompt: usize,
    pub(super) most: usize,
    pub(super) promise: usize,
    /// A token is the place that it was drawn for.
    pub(super) history: Vec<usize>,
    pub(super) runs: bool,
    pub(super) pass: Pass,
    pub(super) started: Option<f64>,
    pub(super) last_token: Option<f64>,
    pub(super) ended: f64,
}

#[derive(Default)]
pub(super) struct Pass {
    pub(super) offset: usize,
    pub(super) layer: usize,
    pub(super) place: u64,
    /// Turns since the chunk before it, the chunks of others since, and whose they were, but for those who were let through.
    pub(super) turns: usize,
    pub(super) chunks: usize,
    pub(super) others: BTreeSet<u64>,
    /// Whether it was let through with the chunk before.
    pub(super) kept: bool,
}

impl Sequence {
    pub(super) fn random(random: &mut Random, span: f64, longest: usize) -> Self {
        let (came, prompt) = (random.between(0.0, span), 1 + random.below(longest));
        let (most, history) = (prompt + 1 + random.below(40), (0..prompt).collect());
        let promise = [most, most.min(prompt + GROWTH)][random.below(2)];
        let priority = [Priority::Low, Priority::Normal, Priority::High][random.below(3)];
        let cancelled = came + [1e9, random.between(0.0, 60.0)][usize::from(random.below(10) == 0)];
        Self { priority, came, cancelled, prompt, most, promise, history, ..Self::default() }
    }

    pub(super) fn next(&self) -> Next {
        let (offset, last) = (self.pass.offset, self.history.len() - 1);
        match self.runs {
            true if offset < self.prompt => Next::Prompt(self.prompt),
            true if offset < last => Next::Replay(last),
            true if offset == last && last + 1 < self.most => Next::Step,
            _ => Next::Nothing,
        }
    }

    pub(super) fn fills(&self) -> bool {
        matches!(self.next(), Next::Prompt(_) | Next::Replay(_))
    }

    pub(super) fn displaces(&self, other: &Self) -> bool {
        other.runs && other.priority < self.priority && other.rank > self.rank
    }
}
