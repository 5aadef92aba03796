//! The state of penalties and DRY. Invariant: equals a rebuild from the whole history at all times, and does not exist for a
//! sampler without them.

use super::dry::{Breakers, Repeats};
use super::history::{Cursor, Since, TokenHistory};
use super::parameters::SamplingParams;
use super::penalties::{Counted, Counts};
use super::pending_draw::Edits;

/// A follower of the history that edits logits. A rollback by k tokens costs O(k) and what a step costs.
#[derive(Debug, Default)]
pub(super) struct SamplerState {
    cursor: Cursor,
    /// The history as it was last synced: what a truncation removed is no longer in the history itself.
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

    /// Edits a row of logits as the history that was last synced asks for.
    pub(super) fn apply(&mut self, params: &SamplingParams, row: &mut [f32]) {
        if params.penalties().is_on() {
            self.counts.apply(&params.penalties(), row);
        }
        if params.dry().is_on() {
            self.repeats.apply(&params.dry(), &self.tokens, row);
        }
    }

    /// What [`Self::apply`] does to each token, behind the biases that `edits` has.
    pub(super) fn add_edits(&mut self, params: &SamplingParams, edits: &mut Edits) {
        if params.penalties().is_on() {
            self.counts.add_edits(&params.penalties(), edits);
        }
        if params.dry().is_on() {
            self.repeats.add_edits(&params.dry(), &self.tokens, edits);
        }
    }
}
