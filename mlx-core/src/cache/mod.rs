//! Key and value caches: one per sequence, one layer cache per layer.

mod buffer;
mod disk;
mod export;
mod full;
mod prefix;
mod quantized;
mod sliding;

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::transforms::{async_eval, eval};

use crate::error::{Error, Result};
pub(crate) use disk::{BLOCK, DiskCache};
pub use disk::{DiskOptions, SavedPrefix, list_saved, remove_all_saved, remove_saved};
use full::FullCache;
pub(crate) use prefix::{Found, Hit, Kept, PrefixTree};
pub(crate) use quantized::GROUP;
use quantized::QuantizedCache;
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
pub enum LayerState {
    /// Every position.
    Full(FullCache),
    /// The positions that the next row sees, and some older ones.
    Sliding(SlidingCache),
    /// Every position, in few bits.
    Quantized(QuantizedCache),
}

impl LayerState {
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
            Self::Quantized(cache) => cache.update(added),
        }
    }

    fn shortest_cut(&self) -> usize {
        match self {
            Self::Full(_) | Self::Quantized(_) => 0,
            Self::Sliding(cache) => cache.shortest_cut(),
        }
    }

    /// Lets go of `dropped` positions behind the first `kept`; those behind them move up, their keys turned by `turn`.
    fn slide(&mut self, kept: usize, dropped: usize, turn: impl Fn(&Array) -> Result<Array>) -> Result<()> {
        match self {
            Self::Full(cache) => cache.slide(kept, dropped, turn),
            Self::Quantized(cache) => cache.slide(kept, dropped, turn),
            Self::Sliding(_) => {
                Err(Error::Mlx("a layer with a window of its own keeps no first tokens".into()))
            }
        }
    }

    /// Positions of `range` as they were added, `[1, 2 H, T, D]`; `None` if they are not there.
    fn part(&self, range: Range<usize>) -> Result<Option<Array>> {
        match self {
            Self::Full(cache) => cache.part(range),
            // Read and written again the one would lose some more; the other has lost its beginning.
            Self::Quantized(_) | Self::Sliding(_) => Ok(None),
        }
    }

    fn fork(&self, length: usize) -> Result<Self> {
        match self {
            Self::Full(cache) => cache.fork(length).map(Self::Full),
            Self::Sliding(cache) => cache.fork(length).map(Self::Sliding),
            Self::Quantized(cache) => cache.fork(length).map(Self::Quantized),
        }
    }

    fn truncate(&mut self, length: usize) {
        match self {
            Self::Full(cache) => cache.truncate(length),
            Self::Sliding(cache) => cache.truncate(length),
            Self::Quantized(cache) => cache.truncate(length),
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Full(cache) => cache.length(),
            Self::Sliding(cache) => cache.length(),
            Self::Quantized(cache) => cache.length(),
        }
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        let (one, three) = match self {
            Self::Full(cache) => (cache.array(), None),
            Self::Sliding(cache) => (cache.array(), None),
            Self::Quantized(cache) => (None, cache.arrays()),
        };
        one.into_iter().chain(three.into_iter().flatten())
    }
}

/// What a model remembers of one sequence. All layers have seen the same number of positions between passes;
/// a pass extends them one after the other.
pub struct SequenceState {
    layers: Vec<LayerState>,
    beyond: bool,
    /// Positions that it has let go of from its middle.
    dropped: usize,
}

impl SequenceState {
    pub(crate) fn new(layers: Vec<LayerState>) -> Self {
        Self { layers, beyond: false, dropped: 0 }
    }

    /// An empty cache of the same layers that keeps every position in so many bits, where it would keep it whole.
    #[must_use]
    pub(crate) fn in_bits(self, bits: u8) -> Self {
        let layer = |layer| match layer {
            LayerState::Sliding(cache) => LayerState::Sliding(cache),
            LayerState::Full(_) | LayerState::Quantized(_) => {
                LayerState::Quantized(QuantizedCache::new(bits))
            }
        };
        Self { layers: self.layers.into_iter().map(layer).collect(), ..self }
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
        self.layers.last().map_or(0, LayerState::length)
    }

    /// The number of tokens that it has seen: more than it has positions once it has slid.
    pub fn seen(&self) -> usize {
        self.offset() + self.dropped
    }

    /// Lets go of `dropped` positions behind the first `kept`; those behind them move up. `turn` gives a layer's keys for places that
    /// lie as many positions earlier.
    pub(crate) fn slide(
        &mut self,
        kept: usize,
        dropped: usize,
        turn: impl Fn(usize, &Array) -> Result<Array>,
    ) -> Result<()> {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            layer.slide(kept, dropped, |keys| turn(index, keys))?;
        }
        self.dropped += dropped;
        Ok(())
    }

    /// The shortest length that it can be cut to: 0 if all positions are still there. A layer with a sliding window has dropped what its
    /// next row does not see; a cache that has slid cannot be cut at all.
    pub fn shortest_cut(&self) -> usize {
        if self.dropped > 0 {
            return usize::MAX;
        }
        self.layers.iter().map(LayerState::shortest_cut).max().unwrap_or(0)
    }

    /// Whether the cache can be cut to `length` positions.
    pub fn reaches(&self, length: usize) -> bool {
        length >= self.shortest_cut()
    }

    /// A cache of its own that goes on after the first `length` positions of this one, with the same bits; `None` if this one does
    /// not [reach](Self::reaches) so far back. At a length that this one does not have yet, a copy of all of it.
    pub fn fork(&self, length: usize) -> Result<Option<Self>> {
        if !self.reaches(length) {
            return Ok(None);
        }
        let layers = self.layers.iter().map(|layer| layer.fork(length)).collect::<Result<_>>()?;
        Ok(Some(Self { layers, beyond: self.beyond, dropped: 0 }))
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

    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut LayerState {
        &mut self.layers[layer]
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(LayerState::arrays)
    }
}
