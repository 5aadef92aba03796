//! The plan of a step, and the planner's view of sequences. Invariant: plain data of ids, lengths and bytes, never arrays.

use std::collections::BTreeSet;
use std::ops::Range;

use super::ledger::Need;
use super::speculation::DraftView;
use super::undivided::Undivided;

/// The changes of the running sequences before a step. Printable, like [`StepPlan`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::engine) struct Changes {
    /// Running sequences with reservations that grow by one extent.
    pub(in crate::engine) extend: Vec<u64>,
    /// Running sequences that return to the queue. Their states are dropped.
    pub(in crate::engine) preempt: Vec<u64>,
    /// Waiting sequences that start.
    pub(in crate::engine) admit: Vec<u64>,
}

/// The computations of one step. Printable, so that a log or a test can show why a step ran as it did.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::engine) struct StepPlan {
    /// Sequences that decode one token each, in ascending order of id.
    pub(in crate::engine) decode: Vec<u64>,
    /// Draft tokens to verify, per sequence, in ascending order of id. Each adds a row to a decoding sequence.
    pub(in crate::engine) drafts: Vec<(u64, usize)>,
    /// Prefill passes, in order.
    pub(in crate::engine) prefill: Vec<Prefill>,
}

impl StepPlan {
    /// Returns true if there is nothing to compute.
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.decode.is_empty() && self.prefill.is_empty()
    }

    /// Returns the ids of the sequences that the step computes.
    pub(in crate::engine) fn ids(&self) -> Vec<u64> {
        let chunks = self.prefill.iter().flat_map(|prefill| &prefill.chunks).map(|chunk| chunk.id);
        let ids: BTreeSet<u64> = self.decode.iter().copied().chain(chunks).collect();
        ids.into_iter().collect()
    }

    /// Removes the sequences for which `decodes` returns false.
    pub(in crate::engine) fn keep_decoding(&mut self, decodes: impl Fn(u64) -> bool) {
        self.decode.retain(|id| decodes(*id));
        self.drafts.retain(|(id, _)| decodes(*id));
    }

    /// Returns the number of draft tokens of a sequence to verify.
    pub(in crate::engine) fn drafted(&self, id: u64) -> usize {
        self.drafts.iter().find(|it| it.0 == id).map_or(0, |it| it.1)
    }

    /// Returns the ids of the sequences that get a token drawn, in ascending order.
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
    /// The spans of the pass, in ascending order of id: one chunk, or several short prompts.
    pub(in crate::engine) chunks: Vec<Chunk>,
    /// The number of layers to issue. A pass from an earlier step continues at its next layer.
    pub(in crate::engine) layers: usize,
    /// The cost of these layers, in units of [`super::prefill_budget::work`].
    pub(in crate::engine) cost: f64,
}

/// Consecutive tokens of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct Chunk {
    pub(in crate::engine) id: u64,
    /// Indices into the history.
    pub(in crate::engine) range: Range<usize>,
    /// True if the tokens were generated before a preemption. They are computed as rows of decode steps.
    pub(in crate::engine) replay: bool,
    /// True if the chunk ends the prompt and the first token is drawn from its last row.
    pub(in crate::engine) ends_prompt: bool,
}

/// The planner's view of one sequence.
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
    /// Lengths of the prompt at which a chunk must end; 0 for none.
    pub(in crate::engine) forced_boundaries: [usize; 2],
    /// Ranges of the prompt within which no chunk ends.
    pub(in crate::engine) undivided: Undivided,
    /// The additional reservation for its next decode step; 0 bytes if the current one suffices.
    pub(in crate::engine) growth: Need,
    pub(in crate::engine) exact: bool,
    /// The adapter of the sequence. Sequences with different adapters share no pass.
    pub(in crate::engine) adapter: usize,
    /// True if the hidden states of its prompt are read, for scores or an embedding. Its prefill then runs one chunk per step.
    pub(in crate::engine) reads_hidden: bool,
    /// True if its first token has not been drawn.
    pub(in crate::engine) awaits_first_token: bool,
    /// True if a pass that included it failed. It then runs without others until its next token.
    pub(in crate::engine) quarantined: bool,
    /// The draft after its newest token, limited to the part that may be verified.
    pub(in crate::engine) draft: DraftView,
}

/// The phase of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Phase {
    /// In the queue, without a state.
    Waiting,
    /// Running, but waiting for another sequence's prefix or for the disk.
    Blocked,
    Running,
    /// The last token is drawn, and only its events remain.
    Ended,
}

/// The progress of a sequence's state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::engine) struct StateView {
    /// The number of tokens processed.
    pub(in crate::engine) seen: usize,
    /// The number of positions in the state. After a context shift it is less than `seen`.
    pub(in crate::engine) offset: usize,
    /// The number of layers issued of an unfinished pass.
    pub(in crate::engine) layers: usize,
    /// The number of first positions that a context shift keeps; `None` if the text ends with the context.
    pub(in crate::engine) n_keep: Option<usize>,
}

/// The next step of a sequence's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Next {
    /// Compute the prompt up to this length.
    Prompt(usize),
    /// Recompute generated tokens up to this length.
    Replay(usize),
    /// Decode: the state includes all tokens except the newest.
    Decode,
    /// There is nothing to compute.
    Nothing,
}

impl SequenceView {
    /// Returns the next work of the sequence.
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

    /// Returns true if it has a prompt or a replay to compute.
    pub(in crate::engine) fn prefills(&self) -> bool {
        matches!(self.next(), Next::Prompt(_) | Next::Replay(_))
    }
}
