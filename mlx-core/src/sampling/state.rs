//! What the penalties in use remember of a history. Invariant: equals a rebuild from the whole history at all
//! times, and does not exist for a sampler without penalties.

use super::dry::{Breakers, Repeats};
use super::history::{Cursor, Since, TokenHistory};
use super::params::SamplingParams;
use super::penalties::Counts;

/// A follower of the history that edits logits.
#[derive(Debug, Default)]
pub struct SamplerState {
    cursor: Cursor,
    counts: Counts,
    repeats: Repeats,
}

impl SamplerState {
    /// Catches up with `history`; after a rollback, from its beginning.
    pub fn sync(&mut self, history: &TokenHistory, params: &SamplingParams, breakers: &Breakers) {
        if let Since::Rebuild(_) = history.since(&mut self.cursor) {
            self.counts.clear();
            self.repeats.clear();
        }
        if params.penalties.is_on() {
            self.counts.extend(history.tokens(), history.prompt_length(), params.penalties.window);
        }
        if params.dry.is_on() {
            self.repeats.extend(history.tokens(), breakers);
        }
    }

    /// Edits a row of logits as the history that was last synced asks for.
    pub fn apply(&mut self, history: &TokenHistory, params: &SamplingParams, row: &mut [f32]) {
        if params.penalties.is_on() {
            self.counts.apply(&params.penalties, row);
        }
        if params.dry.is_on() {
            self.repeats.apply(&params.dry, history.tokens(), row);
        }
    }
}
