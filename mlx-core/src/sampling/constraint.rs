//! The interface of grammars: a follower of the history that decides which tokens may come next.

use super::history::TokenHistory;
use crate::error::Result;

/// A follower of the history that forbids tokens.
pub trait Constraint: Send {
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
