//! The interface of constraints, such as grammars: followers of the history that decide which tokens may come next.

use std::time::Duration;

use super::history::TokenHistory;
use crate::error::Result;

/// A follower of the history that forbids tokens.
pub trait Constraint: Send {
    /// Catches up with `history` and precomputes the data for [`Constraint::restrict`] while there is time. It changes only when the work
    /// is done, not the result.
    fn prepare(&mut self, _history: &TokenHistory) {}

    /// Catches up with `history`. Returns true if it is known that all tokens may come next.
    fn is_free(&mut self, _history: &TokenHistory) -> bool {
        false
    }

    /// The duration of the latest preparation.
    fn last_prepare_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the bytes that must come next, in whatever tokens; empty if unknown. Has no visible effect.
    fn forced_bytes(&mut self, _history: &TokenHistory) -> Vec<u8> {
        Vec::new()
    }

    /// Returns how many of these tokens may come next in sequence, as far as known. Has no visible effect.
    fn admits(&mut self, _history: &TokenHistory, tokens: &[u32]) -> usize {
        tokens.len()
    }

    /// Catches up with `history`, then removes the tokens that may not come next from `allowed`, which initially contains the whole
    /// vocabulary. An error ends only this sequence.
    fn restrict(&mut self, history: &TokenHistory, allowed: &mut TokenMask) -> Result<()>;
}

/// A set of token ids.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u64>,
    width: usize,
}

impl TokenMask {
    /// Makes it the set of all ids below `width`. Reuses its memory.
    pub fn allow_all(&mut self, width: usize) {
        self.words.clear();
        self.words.resize(width.div_ceil(64), u64::MAX);
        self.width = width;
    }

    /// Creates a set of ids below `width` from a bit mask. Bit 0 of the first word is id 0.
    pub fn from_words(words: &[u32], width: usize) -> Self {
        let pair = |pair: &[u32]| u64::from(pair[0]) | u64::from(pair.get(1).copied().unwrap_or(0)) << 32;
        Self { words: words.chunks(2).map(pair).collect(), width }
    }

    /// Removes the ids that are not in `other`.
    pub fn keep(&mut self, other: &Self) {
        let others = other.words.iter().copied().chain(std::iter::repeat(0));
        self.words.iter_mut().zip(others).for_each(|(word, other)| *word &= other);
    }

    /// Returns true if no id is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Makes it the set of one of its ids. Returns false, and changes nothing, if the id is not in the set.
    pub fn keep_only(&mut self, token: u32) -> bool {
        let is_in_set = self.allows(token);
        if is_in_set {
            self.forbid_all();
            self.allow(token);
        }
        is_in_set
    }

    /// Makes it the empty set.
    pub fn forbid_all(&mut self) {
        self.words.fill(0);
    }

    /// Adds an id. Ids outside of the row are ignored.
    pub fn allow(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 64) {
            *word |= 1 << (token % 64);
        }
    }

    /// Returns true if an id is in the set.
    pub fn allows(&self, token: u32) -> bool {
        self.words.get(token as usize / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }

    /// Removes an id.
    pub fn forbid(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 64) {
            *word &= !(1 << (token % 64));
        }
    }

    /// Sets the logits of all other ids to minus infinity.
    pub(super) fn apply(&self, row: &mut [f32]) {
        for (chunk, &word) in row.chunks_mut(64).zip(&self.words) {
            if word != u64::MAX {
                for (bit, logit) in chunk.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}
