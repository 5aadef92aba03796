//! The interface of grammars: a follower of the history that decides which tokens may come next.

use std::time::Duration;

use super::history::TokenHistory;
use crate::error::Result;

/// A follower of the history that forbids tokens.
pub trait Constraint: Send {
    /// Catches up with `history` and computes what [`Constraint::restrict`] will need, while there is time. It changes nothing
    /// but when the work is done.
    fn prepare(&mut self, _history: &TokenHistory) {}

    /// How long the latest preparation took.
    fn cost(&self) -> Duration {
        Duration::ZERO
    }

    /// The bytes that must come next, whichever tokens write them; empty where that is not known. It changes nothing.
    fn forced_bytes(&mut self, _history: &TokenHistory) -> Vec<u8> {
        Vec::new()
    }

    /// How many of these tokens may come next, one after the other, as far as that is known. It changes nothing.
    fn admits(&mut self, _history: &TokenHistory, tokens: &[u32]) -> usize {
        tokens.len()
    }

    /// Catches up with `history` and removes from `allowed`, which holds every token of the row, those that may not come
    /// next. An error ends this sequence alone.
    fn restrict(&mut self, history: &TokenHistory, allowed: &mut TokenMask) -> Result<()>;
}

/// A set of token ids.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u64>,
    width: usize,
}

impl TokenMask {
    /// Makes it the set of all ids below `width`, keeping its memory.
    pub fn allow_all(&mut self, width: usize) {
        self.words.clear();
        self.words.resize(width.div_ceil(64), u64::MAX);
        self.width = width;
    }

    /// A set of ids below `width`: those whose bits are set, from the lowest bit of the first word on.
    pub fn from_words(words: &[u32], width: usize) -> Self {
        let pair = |pair: &[u32]| u64::from(pair[0]) | u64::from(pair.get(1).copied().unwrap_or(0)) << 32;
        Self { words: words.chunks(2).map(pair).collect(), width }
    }

    /// Removes the ids that are not in `other`.
    pub fn keep(&mut self, other: &Self) {
        let others = other.words.iter().copied().chain(std::iter::repeat(0));
        self.words.iter_mut().zip(others).for_each(|(word, other)| *word &= other);
    }

    /// Makes it the empty set.
    pub fn forbid_all(&mut self) {
        self.words.fill(0);
    }

    /// Adds an id; ids beyond the row are ignored.
    pub fn allow(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 64) {
            *word |= 1 << (token % 64);
        }
    }

    /// Whether an id is in the set.
    pub fn allows(&self, token: u32) -> bool {
        self.words.get(token as usize / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }

    /// Removes an id.
    pub fn forbid(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 64) {
            *word &= !(1 << (token % 64));
        }
    }

    /// Makes the logits of all other ids minus infinity.
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
