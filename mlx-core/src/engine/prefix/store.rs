//! The prefixes in memory: one tree per tier, with one byte limit for all trees. A tier belongs to one owner or is shared.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use crate::cache::{Clock, Entry, Match, PrefixTree, SearchResult, SequenceState, Tier};
use crate::engine::miss::{Miss, PrefixMiss};
use crate::engine::stats::Gauges;
use crate::error::Result;
use crate::folder::ModelFolder;

/// The minimum length of a cached text for a miss to be reported to the client.
const MIN_MISS_LENGTH: usize = 64;

/// The cached prefixes and their limit.
pub(super) struct PrefixStore {
    /// The non-empty trees.
    trees: BTreeMap<Tier, PrefixTree<SequenceState>>,
    /// The clock of all trees. The least recently used prefix is evicted first, regardless of its owner.
    clock: Clock,
    limit: u64,
    gauges: Arc<Gauges>,
}

/// A cached prefix that a prompt can reuse.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct PrefixMatch {
    tier: Tier,
    matched: Match,
}

impl PrefixMatch {
    /// Returns the number of positions to reuse.
    pub(super) fn length(self) -> usize {
        self.matched.length
    }
}

/// A lookup of a prompt's prefix.
pub(super) struct PrefixQuery<'a> {
    pub(super) prompt: &'a [u32],
    /// The tiers to search.
    pub(super) tiers: Vec<Tier>,
    /// Maps the length of a common prefix to the length that may be reused.
    pub(super) reusable: &'a dyn Fn(usize) -> usize,
}

impl PrefixQuery<'_> {
    /// Returns the number of reusable positions. At least the prompt's last token is computed.
    fn allowed(&self, common: usize) -> usize {
        (self.reusable)(common.min(self.prompt.len() - 1))
    }
}

impl PrefixStore {
    /// Creates a store for at most `limit` bytes of states.
    pub(super) fn new(limit: u64, gauges: Arc<Gauges>) -> Self {
        Self { trees: BTreeMap::new(), clock: Clock::default(), limit, gauges }
    }

    /// Returns true if the store may hold anything.
    pub(super) fn is_on(&self) -> bool {
        self.limit > 0
    }

    /// Returns the bytes that the store may use if `free` bytes are free.
    pub(super) fn limit(&self, free: u64) -> u64 {
        self.limit.min(free)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.trees.values().map(PrefixTree::bytes).sum()
    }

    pub(super) fn len(&self) -> usize {
        self.trees.values().map(PrefixTree::len).sum()
    }

    /// Returns the longest prefix that a prompt can reuse, and the first difference from a cached text. This counts as a use.
    pub(super) fn find(&mut self, lookup: &PrefixQuery) -> (Option<PrefixMatch>, Option<SearchResult>) {
        let (mut known, mut miss): (Option<PrefixMatch>, Option<SearchResult>) = (None, None);
        for &tier in &lookup.tiers {
            let Some(tree) = self.trees.get_mut(&tier) else { continue };
            let found = tree.find(lookup.prompt, |common| lookup.allowed(common));
            if miss.is_none_or(|miss| found.common > miss.common) {
                miss = Some(found);
            }
            let longest = known.map_or(0, PrefixMatch::length);
            known = found
                .matched
                .filter(|matched| matched.length > longest)
                .map(|matched| PrefixMatch { tier, matched })
                .or(known);
        }
        (known, miss)
    }

    /// Copies a known prefix, if it is still cached and `fits` accepts its state. Nothing may be pending on the device.
    pub(super) fn copy(
        &self,
        known: PrefixMatch,
        fits: impl Fn(&SequenceState) -> bool,
    ) -> Option<SequenceState> {
        let state = self.get(known).filter(|state| fits(state))?;
        let copy = || -> Result<Option<SequenceState>> {
            let copy = state.fork(known.length())?;
            copy.as_ref().map_or(Ok(()), SequenceState::eval)?;
            Ok(copy)
        };
        // A failed copy costs only time.
        let copy = copy().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot copy a prefix");
            None
        });
        if copy.is_some() {
            Gauges::add(&self.gauges.prefix_hits, 1);
        }
        copy
    }

    /// Records the first difference between a prompt and a cached text, and returns it for the request's usage. It reveals, for example,
    /// a time or a random id in a system prompt, which prevents all hits.
    pub(super) fn record_miss(
        &self,
        id: u64,
        prompt: &[u32],
        found: &SearchResult,
        folder: &ModelFolder,
    ) -> Option<Miss> {
        let ((kept_token, kept_length), &token) = found.divergence.zip(prompt.get(found.common))?;
        // Numbers of pictures and clips are not tokens.
        let placeholder = match (&folder.images, &folder.audio) {
            (Ok(images), _) => Some(images.image_token()),
            (_, Ok(audio)) => Some(audio.audio_token()),
            _ => None,
        };
        let token_of =
            |key: u32| placeholder.filter(|_| folder.tokenizer.token(key).is_none()).unwrap_or(key);
        let (token, kept_token) = (token_of(token), token_of(kept_token));
        let text = |token| folder.tokenizer.decode(&[token], false);
        let miss = PrefixMiss {
            position: found.common,
            token,
            text: text(token),
            cached_token: kept_token,
            cached_text: text(kept_token),
            cached_length: kept_length,
        };
        tracing::debug!(id, ?miss, "a prompt differs from a cached text");
        *self.gauges.last_miss.lock().unwrap_or_else(PoisonError::into_inner) = Some(miss);
        (kept_length >= MIN_MISS_LENGTH).then_some(Miss { at: found.common, cached: kept_length })
    }

    /// Evicts the least recently used prefixes until the others fit into `free` bytes and their limit.
    pub(super) fn shrink_to_fit(&mut self, free: u64) {
        self.shrink_to(self.limit.min(free));
    }

    /// Drops all prefixes.
    pub(super) fn clear(&mut self) {
        self.trees = BTreeMap::new();
    }

    /// Evicts checkpoints of the least recently used prefix first, then the prefix itself.
    fn shrink_to(&mut self, bytes: u64) {
        while self.bytes() > bytes {
            let Some(tree) = self.trees.values_mut().min_by_key(|tree| tree.oldest_use()) else { return };
            if !tree.evict_restore_point(|state| {
                state.evict_checkpoint().map(|(length, bytes)| (length, bytes as u64))
            }) {
                tree.pop_oldest();
                Gauges::add(&self.gauges.prefix_evictions, 1);
                self.trees.retain(|_, tree| tree.len() > 0);
            }
        }
    }

    /// Evicts prefixes until `bytes` bytes fit below the limit, and `at_once` bytes fit into `free` while the prefix is stored. Returns
    /// false if that is impossible.
    pub(super) fn make_space(&mut self, bytes: u64, at_once: u64, free: u64) -> bool {
        if bytes > self.limit || at_once > free {
            return false;
        }
        self.shrink_to((self.limit - bytes).min(free - at_once));
        true
    }

    /// Stores the state of `tokens`, which must have nothing pending, and evicts stale states.
    pub(super) fn insert(&mut self, tier: Tier, tokens: &[u32], state: SequenceState) {
        let entry = Entry {
            bytes: (state.bytes() + state.checkpoint_bytes()) as u64,
            shortest: state.min_truncate_length(),
            restore_points: state.checkpoints().collect(),
            value: state,
        };
        let new = || PrefixTree::new(self.clock.clone());
        self.trees.entry(tier).or_insert_with(new).insert(tokens, entry);
        for tree in self.trees.values_mut() {
            let evicted = std::iter::from_fn(|| tree.pop_stale()).count();
            Gauges::add(&self.gauges.prefix_evictions, evicted);
        }
        self.trees.retain(|_, tree| tree.len() > 0);
    }

    /// Returns a state that begins with `tokens`, for [`get`](Self::get). This does not count as a use.
    pub(super) fn locate(&self, tier: Tier, tokens: &[u32]) -> Option<PrefixMatch> {
        self.trees.get(&tier)?.locate(tokens).map(|matched| PrefixMatch { tier, matched })
    }

    /// Returns a located state, if it is still cached.
    pub(super) fn get(&self, known: PrefixMatch) -> Option<&SequenceState> {
        self.trees.get(&known.tier)?.get(&known.matched)
    }
}

/// Evaluates a state. With `copy`, copies it to a buffer of the size that it needs.
pub(super) fn compact(state: SequenceState, copy: bool) -> Result<Option<SequenceState>> {
    let state = if copy { state.fork(state.offset())? } else { Some(state) };
    state.as_ref().map_or(Ok(()), SequenceState::eval)?;
    Ok(state)
}
