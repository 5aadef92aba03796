//! Beginnings of texts on disk: restored when a prompt starts that memory knows less of, saved block by block between the turns.
//! Invariant: saving waits for nobody who waits for tokens.

use std::collections::VecDeque;

use super::runner::Engine;
use super::stats::Gauges;
use crate::cache::{BLOCK, DiskCache, Rollback, SequenceState, Variant};
use crate::error::Result;

/// The most texts that wait to be saved. Nobody has promised their tokens any memory, and a disk may stall for ever.
const MOST_PENDING: usize = 64;

/// The folder, and what is yet to be saved.
pub(super) struct SavedPrefixes {
    cache: DiskCache,
    pending: VecDeque<Pending>,
}

/// A text that is being saved.
struct Pending {
    tokens: Vec<u32>,
    /// Where its next block ends.
    end: usize,
}

impl SavedPrefixes {
    /// Nothing is to be saved yet.
    pub(super) fn new(cache: DiskCache) -> Self {
        Self { cache, pending: VecDeque::new() }
    }

    /// Lets `tokens` be saved, as far as they are not.
    pub(super) fn queue(&mut self, tokens: &[u32]) {
        let end = self.cache.find(tokens).length() + BLOCK;
        if end <= tokens.len() {
            if self.pending.len() == MOST_PENDING {
                // The oldest is the likeliest to have left the memory that it would be saved from.
                self.pending.pop_front();
            }
            self.pending.push_back(Pending { tokens: tokens.to_vec(), end });
        }
    }
}

impl Engine {
    /// The beginning of a sequence's prompt from disk, if more than `known` positions of it can be had there.
    pub(super) fn restored_beginning(&mut self, id: u64, known: usize) -> Option<SequenceState> {
        let (saved, sequence) = (self.prefixes.saved.as_ref()?, self.sequences.get(&id)?);
        // AttentionWeights and embeddings need every position's hidden state.
        if sequence.reader.is_on() || self.device.variant(sequence.history.len()) != Variant::default() {
            return None;
        }
        let prompt = sequence.prompt();
        let allowed = |length: usize| self.device.reusable(length.min(prompt.len() - 1));
        let found = saved.cache.find(prompt);
        if allowed(found.length()) <= known {
            return None;
        }
        let (mut blocks, damaged) = saved.cache.load(&found, prompt, allowed(found.length()));
        Gauges::add(&self.gauges.damaged_blocks, damaged);
        let length = allowed(blocks.len() * BLOCK);
        if length <= known {
            return None;
        }
        blocks.truncate(length.div_ceil(BLOCK));
        let mut cache = self.device.new_state(0);
        self.settle_step();
        match cache.import(&blocks) {
            Ok(()) if cache.rollback(length) == Rollback::Done => {
                Gauges::add(&self.gauges.prefix_restores, 1);
                Some(cache)
            }
            Ok(()) => None,
            Err(error) => {
                tracing::warn!(%error, "a saved beginning could not be restored");
                None
            }
        }
    }

    /// Saves the next block that is pending; with `patient`, waits until there is room for it. Says whether more is pending.
    pub(super) fn save_some(&mut self, patient: bool) -> bool {
        let Some(saved) = &mut self.prefixes.saved else { return false };
        let Some(Pending { tokens, end }) = saved.pending.front_mut() else { return false };
        if !patient && !saved.cache.has_room() {
            return true;
        }
        let beginning = &tokens[..*end];
        let mut save = || -> Result<bool> {
            // It may have made room meanwhile, or have been saved for another text.
            let known = self.prefixes.tree.peek(beginning);
            // Only states of the default variant are saved.
            let Some(cache) = known.filter(|cache| cache.variant() == Variant::default()) else {
                return Ok(false);
            };
            if saved.cache.has(beginning) {
                return Ok(true);
            }
            if let Some(step) = &mut self.step {
                step.settle();
            }
            let Some(layers) = cache.export(*end - BLOCK..*end)? else { return Ok(false) };
            Ok(saved.cache.save(beginning, layers))
        };
        let goes_on = save().unwrap_or_else(|error| {
            tracing::warn!(%error, "the beginning of a text could not be saved");
            false
        });
        *end += BLOCK;
        if !goes_on || *end > tokens.len() {
            saved.pending.pop_front();
        }
        !saved.pending.is_empty()
    }
}
