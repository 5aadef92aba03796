//! The plan of a step, and what the planner sees of the sequences. Invariant: plain data; ids, lengths and bytes, never an array.

use std::collections::BTreeSet;
use std::ops::Range;

use super::ledger::Need;
use super::speculation::DraftView;
use super::undivided::Undivided;

/// What changes before a step: which sequences run. Printable, like [`StepPlan`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::engine) struct Changes {
    /// Running sequences whose reservations grow by one extent.
    pub(in crate::engine) grow: Vec<u64>,
    /// Running sequences that go back to the queue; their states are dropped.
    pub(in crate::engine) preempt: Vec<u64>,
    /// Waiting sequences that start.
    pub(in crate::engine) admit: Vec<u64>,
}

/// What one step computes. Printable, so that a log or a test can show why a step did what it did.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::engine) struct StepPlan {
    /// Sequences that decode one token each, by rising id.
    pub(in crate::engine) decode: Vec<u64>,
    /// Draft tokens to verify, per sequence: more rows of the decoding sequences. By rising id.
    pub(in crate::engine) drafts: Vec<(u64, usize)>,
    /// Prefill passes, in order.
    pub(in crate::engine) prefill: Vec<Prefill>,
}

impl StepPlan {
    /// Whether there is nothing to compute.
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.decode.is_empty() && self.prefill.is_empty()
    }

    /// The sequences that the step computes.
    pub(in crate::engine) fn ids(&self) -> Vec<u64> {
        let chunks = self.prefill.iter().flat_map(|prefill| &prefill.chunks).map(|chunk| chunk.id);
        let ids: BTreeSet<u64> = self.decode.iter().copied().chain(chunks).collect();
        ids.into_iter().collect()
    }

    /// Drops the sequences that do not decode any more.
    pub(in crate::engine) fn keep_decoding(&mut self, decodes: impl Fn(u64) -> bool) {
        self.decode.retain(|id| decodes(*id));
        self.drafts.retain(|(id, _)| decodes(*id));
    }

    /// The number of tokens of a sequence's draft that are verified.
    pub(in crate::engine) fn drafted(&self, id: u64) -> usize {
        self.drafts.iter().find(|it| it.0 == id).map_or(0, |it| it.1)
    }

    /// The sequences for which a token will be drawn, by rising id.
    pub(in crate::engine) fn draws(&self) -> Vec<u64> {
        let ends = self.prefill.iter().flat_map(|prefill| &prefill.chunks).filter(|chunk| chunk.ends_prompt);
        let mut ids: Vec<u64> = self.decode.iter().copied().chain(ends.map(|chunk| chunk.id)).collect();
        ids.sort_unstable();
        ids
    }
}

/// Some layers of a prefill pass.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::engine) struct Prefill {
    /// The spans of the pass, by rising id: one chunk, or several short prompts.
    pub(in crate::engine) chunks: Vec<Chunk>,
    /// How many layers to issue; a pass that was begun in an earlier step goes on where it stopped.
    pub(in crate::engine) layers: usize,
    /// What these layers cost, in units of [`super::prefill_budget::work`].
    pub(in crate::engine) cost: f64,
}

/// Consecutive tokens of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct Chunk {
    pub(in crate::engine) id: u64,
    /// Indices into the history.
    pub(in crate::engine) range: Range<usize>,
    /// Whether the tokens were generated before a preemption. They are computed as rows of decode steps.
    pub(in crate::engine) replay: bool,
    /// Whether the chunk ends the prompt and the first token is drawn from its last row.
    pub(in crate::engine) ends_prompt: bool,
}

/// One sequence as the planner sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub(in crate::engine) struct SequenceView {
    pub(in crate::engine) id: u64,
    pub(in crate::engine) phase: Phase,
    /// Tokens of the prompt.
    pub(in crate::engine) prompt: usize,
    /// Tokens of the history.
    pub(in crate::engine) length: usize,
    pub(in crate::engine) state: StateView,
    /// Lengths of the prompt at which a chunk ends whatever its shape would be otherwise; 0 for none.
    pub(in crate::engine) cuts: [usize; 2],
    /// Parts of the prompt in which no chunk ends.
    pub(in crate::engine) undivided: Undivided,
    /// The reservation to add before its next decode step; 0 bytes if the present one covers it.
    pub(in crate::engine) growth: Need,
    pub(in crate::engine) exact: bool,
    /// The adapter that it goes through; sequences of different ones share no pass.
    pub(in crate::engine) adapter: usize,
    /// Whether its prompt's hidden states are read, for scores or an embedding: it prefills alone, one chunk a step.
    pub(in crate::engine) reads_hidden: bool,
    /// Whether its first token is still to be drawn.
    pub(in crate::engine) awaits_first_token: bool,
    /// Whether a pass that it was part of failed: it runs alone until its next token.
    pub(in crate::engine) quarantined: bool,
    /// What is proposed to follow its newest token, as far as it may be verified.
    pub(in crate::engine) draft: DraftView,
}

/// Whether a sequence can be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Phase {
    /// In the queue, without a state.
    Waiting,
    /// Running, but waiting for another sequence's prefix or for the disk.
    Blocked,
    Running,
    /// Its last token is drawn; only its events are left.
    Ended,
}

/// How far a sequence's state has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::engine) struct StateView {
    /// Tokens that it has seen.
    pub(in crate::engine) seen: usize,
    /// Positions that it holds: fewer than it has seen after a context shift.
    pub(in crate::engine) offset: usize,
    /// Layers of an open pass that were issued.
    pub(in crate::engine) layers: usize,
    /// The number of first positions that stay in a context shift; `None` if the text ends with the context.
    pub(in crate::engine) n_keep: Option<usize>,
}

/// The next piece of a sequence's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Next {
    /// Compute the prompt up to this length.
    Prompt(usize),
    /// Compute generated tokens again up to this length.
    Replay(usize),
    /// The state holds all but the newest token: decode.
    Decode,
    /// Nothing can be computed.
    Nothing,
}

impl SequenceView {
    /// What to compute next.
    pub(in crate::engine) fn next(&self) -> Next {
        let last = self.length - 1;
        match self.state.seen {
            _ if self.phase != Phase::Running => Next::Nothing,
            seen if seen < self.prompt => Next::Prompt(self.prompt),
            seen if seen < last => Next::Replay(last),
            seen if seen == last => Next::Decode,
            _ => Next::Nothing,
        }
    }

    /// Whether it has a prompt or a replay to compute.
    pub(in crate::engine) fn prefills(&self) -> bool {
        matches!(self.next(), Next::Prompt(_) | Next::Replay(_))
    }
}
