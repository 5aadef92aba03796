//! Key and value caches: one per sequence, one layer cache per layer.

mod buffer;
mod full;
mod sliding;

use mlx_rs::Array;
use mlx_rs::transforms::{async_eval, eval};

use crate::error::Result;
use full::FullCache;
use sliding::SlidingCache;

/// Buffers grow by this many positions.
const STEP: usize = 256;

/// The positions that a cache of `length` positions has room for.
pub fn capacity(length: usize) -> usize {
    length.next_multiple_of(STEP)
}

/// The positions that the cache of a layer with this `window` has room for at most, after `tokens` positions of which a pass
/// brings up to `run`. Without a window, that is all of them.
pub fn layer_capacity(window: Option<usize>, tokens: usize, run: usize) -> usize {
    window.map_or(capacity(tokens), |window| sliding::sliding_capacity(window, tokens, run))
}

/// What one layer remembers of one sequence.
pub enum LayerCache {
    /// Every position.
    Full(FullCache),
    /// The positions that the next row sees, and some older ones.
    Sliding(SlidingCache),
}

impl LayerCache {
    /// An empty cache for a layer whose rows see `window` positions, themselves included, or all of them.
    pub(crate) fn new(window: Option<usize>) -> Self {
        match window {
            None => Self::Full(FullCache::default()),
            Some(window) => Self::Sliding(SlidingCache::new(window)),
        }
    }

    /// Appends keys and values, `[1, 2 H, T, D]`; gives the keys and the values, up to the newest, that at least one of the new
    /// rows may attend to.
    pub(crate) fn update(&mut self, added: &Array) -> Result<(Array, Array)> {
        match self {
            Self::Full(cache) => cache.update(added),
            Self::Sliding(cache) => cache.update(added),
        }
    }

    fn reaches(&self, length: usize) -> bool {
        match self {
            Self::Full(_) => true,
            Self::Sliding(cache) => cache.reaches(length),
        }
    }

    fn fork(&self, length: usize) -> Result<Self> {
        match self {
            Self::Full(cache) => cache.fork(length).map(Self::Full),
            Self::Sliding(cache) => cache.fork(length).map(Self::Sliding),
        }
    }

    fn truncate(&mut self, length: usize) {
        match self {
            Self::Full(cache) => cache.truncate(length),
            Self::Sliding(cache) => cache.truncate(length),
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Full(cache) => cache.length(),
            Self::Sliding(cache) => cache.length(),
        }
    }

    fn array(&self) -> Option<&Array> {
        match self {
            Self::Full(cache) => cache.array(),
            Self::Sliding(cache) => cache.array(),
        }
    }
}

/// What a model remembers of one sequence. All layers have seen the same number of positions between passes;
/// a pass extends them one after the other.
pub struct SequenceCache {
    layers: Vec<LayerCache>,
    beyond: bool,
}

impl SequenceCache {
    pub(crate) fn new(layers: Vec<LayerCache>) -> Self {
        Self { layers, beyond: false }
    }

    /// Says that the sequence is, or will soon be, longer than what its model was first trained on, which some models turn keys and
    /// queries differently for. To be said before the first pass.
    pub(crate) fn go_beyond(&mut self) {
        self.beyond = true;
    }

    /// Whether the cache is for a sequence longer than what its model was first trained on. Only caches that agree about this can
    /// stand in for each other; see [`crate::model::ModelSpec::is_beyond`].
    pub fn is_beyond(&self) -> bool {
        self.beyond
    }

    /// The number of positions that all layers have seen. In the middle of a pass the first layers have seen more.
    pub fn offset(&self) -> usize {
        self.layers.last().map_or(0, LayerCache::length)
    }

    /// Whether the cache can be cut to `length` positions. A layer with a sliding window has dropped what its next row does not
    /// see, so far back it may not reach; to its own length, and beyond, every cache does.
    pub fn reaches(&self, length: usize) -> bool {
        self.layers.iter().all(|layer| layer.reaches(length))
    }

    /// A cache of its own that goes on after the first `length` positions of this one, with the same bits; `None` if this one does
    /// not [reach](Self::reaches) so far back. At a length that this one does not have yet, a copy of all of it.
    pub fn fork(&self, length: usize) -> Result<Option<Self>> {
        if !self.reaches(length) {
            return Ok(None);
        }
        let layers = self.layers.iter().map(|layer| layer.fork(length)).collect::<Result<_>>()?;
        Ok(Some(Self { layers, beyond: self.beyond }))
    }

    /// Forgets all positions from `length` on. `false`, with nothing changed, if the cache does not [reach](Self::reaches) so
    /// far back; whoever needs that length then starts over.
    #[must_use = "a cache that cannot be cut is unchanged"]
    pub fn truncate(&mut self, length: usize) -> bool {
        let reaches = self.reaches(length);
        if reaches {
            for layer in &mut self.layers {
                layer.truncate(length);
            }
        }
        reaches
    }

    /// The bytes of device memory that are held.
    pub fn bytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }

    /// Lets the device begin with what is pending and returns at once.
    pub fn start(&self) -> Result<()> {
        Ok(async_eval(self.arrays())?)
    }

    /// Computes what is still pending, so that no graph grows from pass to pass.
    pub fn eval(&self) -> Result<()> {
        Ok(eval(self.arrays())?)
    }

    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut LayerCache {
        &mut self.layers[layer]
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().filter_map(LayerCache::array)
    }
}
