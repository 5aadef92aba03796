//! The state of penalties and DRY. Invariant: it always equals a rebuild from the whole history. A sampler without penalties has no such
//! state.

use super::dry::{Breakers, Repeats};
use super::history::{Cursor, Since, TokenHistory};
use super::parameters::SamplingParams;
use super::penalties::{Counted, Counts};
use super::pending_draw::Edits;

/// A follower of the history that edits logits. A rollback by k tokens costs O(k) plus the cost of a step.
#[derive(Debug, Default)]
pub(super) struct SamplerState {
    cursor: Cursor,
    /// The history at the last sync. The history itself no longer has the tokens that a truncation removed.
    tokens: Vec<u32>,
    prompt_length: usize,
    counts: Counts,
    repeats: Repeats,
}

impl SamplerState {
    /// Catches up with `history`.
    pub(super) fn sync(&mut self, history: &TokenHistory, params: &SamplingParams, breakers: &Breakers) {
        let (unchanged, tail) = match history.since(&mut self.cursor) {
            Since::Append(tail) => (self.tokens.len(), tail),
            Since::Truncated { to, tail } => (to, tail),
        };
        if params.penalties().is_on() {
            let old = Counted { tokens: &self.tokens, prompt_length: self.prompt_length };
            let new = Counted { tokens: history.tokens(), prompt_length: history.prompt_length() };
            self.counts.update(old, new, unchanged, params.penalty_last_n);
        }
        if params.dry().is_on() {
            self.repeats.truncate(&self.tokens, unchanged, breakers);
            self.repeats.extend(tail, breakers);
        }
        self.tokens.truncate(unchanged);
        self.tokens.extend_from_slice(tail);
        self.prompt_length = history.prompt_length();
    }

    /// Edits a row of logits according to the history at the last sync.
    pub(super) fn apply(&mut self, params: &SamplingParams, row: &mut [f32]) {
        if params.penalties().is_on() {
            self.counts.apply(&params.penalties(), row);
        }
        if params.dry().is_on() {
            self.repeats.apply(&params.dry(), &self.tokens, row);
        }
    }

    /// Adds the effect of [`Self::apply`] to the edits of each token, after the biases in `edits`.
    pub(super) fn add_edits(&mut self, params: &SamplingParams, edits: &mut Edits) {
        if params.penalties().is_on() {
            self.counts.add_edits(&params.penalties(), edits);
        }
        if params.dry().is_on() {
            self.repeats.add_edits(&params.dry(), &self.tokens, edits);
        }
    }
}
