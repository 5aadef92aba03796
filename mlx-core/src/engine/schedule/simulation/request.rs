//! The random requests of the simulation, and the records of each.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::engine::client::{Client, Priority};
use crate::engine::schedule::plan::{Phase, SequenceView, StateView};
use crate::engine::schedule::speculation::DraftView;
use crate::engine::schedule::undivided::Undivided;
use crate::engine::schedule::{Need, Ticket};
use crate::sampling::{Stream, uniform};

/// Small, so that reservations grow often.
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

pub(super) fn need(tokens: usize) -> Need {
    let tokens = tokens as u64;
    Need { own: 40 + 3 * tokens, pass: 2 * tokens.min(300) }
}

/// Returns the bytes that sequences with these needs take together.
pub(super) fn together(needs: impl Iterator<Item = Need>) -> u64 {
    let sum =
        needs.fold(Need::default(), |sum, it| Need { own: sum.own + it.own, pass: sum.pass.max(it.pass) });
    sum.total()
}

/// A request and its progress.
#[derive(Default)]
pub(super) struct Sequence {
    pub(super) id: u64,
    pub(super) ticket: Ticket,
    pub(super) came: f64,
    pub(super) rank: (Duration, u64),
    pub(super) cancelled: f64,
    pub(super) prompt: usize,
    pub(super) most: usize,
    pub(super) reserved: usize,
    /// The tokens of the prompt and the answer. Each token is its own position.
    pub(super) history: Vec<usize>,
    pub(super) runs: bool,
    pub(super) exact: bool,
    pub(super) quarantined: bool,
    pub(super) progress: Progress,
    pub(super) started: Option<f64>,
    pub(super) last_token: Option<f64>,
    /// Steps since its last token that ran only a quarantined sequence, and the seconds that all steps since then may have taken.
    pub(super) skipped: usize,
    pub(super) allowed: f64,
    pub(super) ended: f64,
}

#[derive(Default)]
pub(super) struct Progress {
    pub(super) seen: usize,
    pub(super) layers: usize,
    /// Since its last chunk: the number of steps, the number of other sequences' chunks, and the ids of those sequences except short
    /// prompts.
    pub(super) steps: usize,
    pub(super) chunks: usize,
    pub(super) others: BTreeSet<u64>,
    /// True if the remainder of its prompt was short after the last chunk.
    pub(super) short: bool,
}

impl Sequence {
    pub(super) fn random(random: &mut Random, span: f64, longest: usize) -> Self {
        let (came, prompt) = (random.between(0.0, span), 1 + random.below(longest));
        let (most, history) = (prompt + 1 + random.below(40), (0..prompt).collect());
        let reserved = [most, most.min(prompt + GROWTH)][random.below(2)];
        // All sequences of a request have the same priority and client.
        let request = random.below(9) as u64;
        let priority = [Priority::Low, Priority::Normal, Priority::High][request as usize / 3];
        let ticket = Ticket { client: Client(request % 3 / 2), request, priority };
        let cancelled = came + [1e9, random.between(0.0, 60.0)][usize::from(random.below(10) == 0)];
        let exact = random.below(2) == 0;
        Self { ticket, came, cancelled, prompt, most, reserved, history, exact, ..Self::default() }
    }

    pub(super) fn view(&self) -> SequenceView {
        let Progress { seen, layers, .. } = self.progress;
        let growth = if self.history.len() < self.reserved {
            Need::default()
        } else {
            let larger = need(self.most.min(self.reserved + GROWTH));
            Need { own: larger.own - need(self.reserved).own, ..larger }
        };
        SequenceView {
            id: self.id,
            phase: if self.runs { Phase::Running } else { Phase::Waiting },
            prompt: self.prompt,
            length: self.history.len(),
            state: StateView { seen, offset: seen, layers, n_keep: None },
            // As for hybrid models; exact prompts are divided only at chunk boundaries.
            forced_boundaries: if self.exact || !self.id.is_multiple_of(4) {
                [0; 2]
            } else {
                [self.prompt / 3, self.prompt * 2 / 3]
            },
            undivided: Undivided::default(),
            growth,
            exact: self.exact,
            adapter: usize::from(self.id.is_multiple_of(16)),
            reads_hidden: false,
            awaits_first_token: self.history.len() == self.prompt,
            quarantined: self.quarantined,
            draft: DraftView::default(),
        }
    }

    pub(super) fn prefills(&self) -> bool {
        self.view().prefills()
    }

    pub(super) fn outranks(&self, other: &Self) -> bool {
        other.runs && other.ticket.priority < self.ticket.priority && other.rank > self.rank
    }

    /// Returns true if both belong to the same group when `own` requests a slot: to the same request of its own client, or to the same
    /// other client.
    pub(super) fn shares_with(&self, other: &Self, own: &Self) -> bool {
        let (one, two) = (self.ticket, other.ticket);
        one.client == two.client && (one.client != own.ticket.client || one.request == two.request)
    }
}
