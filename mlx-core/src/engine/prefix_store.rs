//! What ended requests leave for later ones: the beginnings of their texts, with the keys and values that were computed for them.
//! Invariant: together with all promises it never exceeds the budget; whoever is promised memory gets it at once.

use std::sync::PoisonError;

use super::disk_prefix::SavedPrefixes;
use super::runner::Engine;
use super::sequence::{Run, Sequence};
use super::stats::Gauges;
use crate::cache::{self, DiskCache, Found, Hit, Kept, PrefixTree, SequenceState};
use crate::error::Result;

/// The beginnings that are kept, and how much they may take.
pub(super) struct Prefixes {
    pub(super) tree: PrefixTree<SequenceState>,
    limit: u64,
    /// The same on disk.
    pub(super) saved: Option<SavedPrefixes>,
}

/// Why a prompt that begins like a known text was not taken over any further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixMiss {
    /// The first position that differs.
    pub position: usize,
    /// The prompt's token there.
    pub token: u32,
    /// Its text.
    pub text: String,
    /// The token of the text that was kept.
    pub kept_token: u32,
    /// Its text.
    pub kept_text: String,
}

impl Prefixes {
    /// For at most `limit` bytes, and what goes to disk.
    pub(super) fn new(limit: u64, saved: Option<DiskCache>) -> Self {
        Self { tree: PrefixTree::default(), limit, saved: saved.map(SavedPrefixes::new) }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.tree.bytes()
    }

    pub(super) fn len(&self) -> usize {
        self.tree.len()
    }

    /// Lets go of what was used longest ago until `bytes` are enough; gives how many beginnings went.
    fn shrink_to(&mut self, bytes: u64) -> usize {
        let before = self.tree.len();
        while self.tree.bytes() > bytes && self.tree.pop_oldest().is_some() {}
        before - self.tree.len()
    }
}

impl Engine {
    /// The longest beginning of a sequence's prompt that may be taken over. Looking counts as a use, so that what is wanted is the last
    /// to make room.
    pub(super) fn known_beginning(&mut self, id: u64) -> Option<Hit> {
        let sequence = self.sequences.get(&id)?;
        // AttentionWeights and embeddings need every position's hidden state.
        if sequence.reader.is_on() || self.prefixes.limit == 0 {
            return None;
        }
        let (device, prompt) = (&self.device, sequence.prompt());
        let found = self.prefixes.tree.find(prompt, |common| device.reusable(common.min(prompt.len() - 1)));
        if sequence.awaits_first_token() {
            self.note_miss(id, &found);
        }
        found.hit
    }

    /// Of prompts that begin like a known text and go on differently, the place is told: a clock or a random id in a system prompt
    /// costs its user every hit, and nobody would know.
    fn note_miss(&self, id: u64, found: &Found) {
        let (Some(sequence), Some(kept_token)) = (self.sequences.get(&id), found.differs) else { return };
        let position = found.common;
        let Some(&token) = sequence.prompt().get(position) else { return };
        let text = |token| self.folder.tokenizer.decode(&[token], false);
        let miss = PrefixMiss { position, token, text: text(token), kept_token, kept_text: text(kept_token) };
        let length = found.hit.map_or(0, |hit| hit.length);
        tracing::debug!(id, length, ?miss, "a prompt leaves a known text");
        *self.gauges.last_miss.lock().unwrap_or_else(PoisonError::into_inner) = Some(miss);
    }

    /// A copy of a known beginning, if it is still there.
    pub(super) fn copy_of_beginning(&mut self, id: u64, hit: Option<Hit>) -> Option<SequenceState> {
        let hit = hit?;
        let variant = self.device.variant(self.sequences.get(&id)?.history.len());
        self.settle_step();
        let copy = || -> Result<Option<SequenceState>> {
            let known = self.prefixes.tree.get(&hit).filter(|known| known.variant() == variant);
            let Some(known) = known else { return Ok(None) };
            known.fork(hit.length)?.map_or(Ok(None), |copy| settled(copy, false))
        };
        let copy = copy().unwrap_or_else(|error| {
            // A known beginning is a saving, never a need.
            tracing::warn!(%error, "a known beginning could not be copied");
            None
        });
        if copy.is_some() {
            Gauges::add(&self.gauges.prefix_hits, 1);
        }
        copy
    }

    /// What is kept gives way to what has been promised.
    pub(super) fn make_room(&mut self) {
        self.shrink_to(self.prefixes.limit.min(self.scheduler.ledger().free()));
    }

    fn shrink_to(&mut self, bytes: u64) {
        let gone = self.prefixes.shrink_to(bytes);
        Gauges::add(&self.gauges.prefix_evictions, gone);
    }

    /// Keeps the text of a sequence that has ended and whose promise was given back, as far as a later prompt may take it over.
    pub(super) fn keep(&mut self, mut sequence: Sequence) {
        // Hardly anybody goes on from a text that was scored or embedded.
        let was_read = sequence.reader.is_on() || sequence.limits.max_tokens == 0;
        if sequence.quarantined || was_read || self.prefixes.limit == 0 {
            return;
        }
        let held = sequence.run.as_ref().map_or(0, |run| run.cache.bytes() as u64);
        // Rows of steps are other bits than a prompt's chunks make of the same tokens.
        let length =
            if self.device.keeps_bits() { sequence.history.prompt_length() } else { sequence.history.len() };
        sequence.rewind(length, &self.device);
        let Some(Run { cache, .. }) = sequence.run.take() else { return };
        let length = cache.offset();
        let least = self.capacity.cache_per_token() * cache::capacity(length) as u64;
        // While it is copied to where it takes no more than it needs, there are two.
        let (bytes, at_once) = if least < held { (least, least + held) } else { (held, held) };
        let (limit, free) = (self.prefixes.limit, self.scheduler.ledger().free());
        if length == 0 || bytes > limit || at_once > free {
            return;
        }
        self.shrink_to((limit - bytes).min(free - at_once));
        if !self.settle_step() {
            return;
        }
        match settled(cache, least < held) {
            Ok(Some(value)) => {
                let kept = Kept { bytes: value.bytes() as u64, shortest: value.shortest_cut(), value };
                let tokens = &sequence.history.tokens()[..length];
                self.prefixes.tree.insert(tokens, kept);
                if let Some(saved) = &mut self.prefixes.saved {
                    saved.queue(tokens);
                }
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "the beginning of a text could not be kept"),
        }
        // A cache may take more than was reckoned.
        self.make_room();
    }
}

/// A cache with nothing pending; a loose one in no more memory than it needs.
fn settled(cache: SequenceState, loose: bool) -> Result<Option<SequenceState>> {
    let cache = if loose { cache.fork(cache.offset())? } else { Some(cache) };
    cache.as_ref().map_or(Ok(()), SequenceState::eval)?;
    Ok(cache)
}
