//! Key and value caches: one per sequence, one layer cache per layer.

mod full;

use mlx_rs::Array;
use mlx_rs::transforms::{async_eval, eval};

use crate::error::Result;
use full::{FullCache, STEP};

/// The positions that a cache of `length` positions has room for.
pub fn capacity(length: usize) -> usize {
    length.next_multiple_of(STEP)
}

/// What one layer remembers of one sequence.
pub enum LayerCache {
    /// Every position.
    Full(FullCache),
}

impl LayerCache {
    pub(crate) fn full() -> Self {
        Self::Full(FullCache::default())
    }

    /// Appends keys and values, `[1, 2 H, T, D]`; gives the keys and the values that the new rows may attend to.
    pub(crate) fn update(&mut self, added: &Array) -> Result<(Array, Array)> {
        match self {
            Self::Full(cache) => cache.update(added),
        }
    }

    fn fork(&self, length: usize) -> Result<Self> {
        match self {
            Self::Full(cache) => cache.fork(length).map(Self::Full),
        }
    }

    fn truncate(&mut self, length: usize) {
        match self {
            Self::Full(cache) => cache.truncate(length),
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Full(cache) => cache.length(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Full(cache) => cache.bytes(),
        }
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        match self {
            Self::Full(cache) => cache.arrays(),
        }
    }
}

/// What a model remembers of one sequence. All layers hold the same number of positions between passes;
/// a pass extends them one after the other.
pub struct SequenceCache {
    layers: Vec<LayerCache>,
}

impl SequenceCache {
    pub(crate) fn new(layers: Vec<LayerCache>) -> Self {
        Self { layers }
    }

    /// The number of positions that all layers hold. In the middle of a pass the first layers hold more.
    pub fn offset(&self) -> usize {
        self.layers.last().map_or(0, LayerCache::length)
    }

    /// A cache of its own with the first `length` positions of this one.
    pub fn fork(&self, length: usize) -> Result<Self> {
        let layers = self.layers.iter().map(|layer| layer.fork(length)).collect::<Result<_>>()?;
        Ok(Self { layers })
    }

    /// Forgets all positions from `length` on.
    pub fn truncate(&mut self, length: usize) {
        for layer in &mut self.layers {
            layer.truncate(length);
        }
    }

    /// The bytes of device memory that are held.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(LayerCache::bytes).sum()
    }

    /// Lets the device begin with what is pending and returns at once.
    pub fn start(&self) -> Result<()> {
        Ok(async_eval(self.layers.iter().flat_map(LayerCache::arrays))?)
    }

    /// Computes what is still pending, so that no graph grows from pass to pass.
    pub fn eval(&self) -> Result<()> {
        Ok(eval(self.layers.iter().flat_map(LayerCache::arrays))?)
    }

    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut LayerCache {
        &mut self.layers[layer]
    }
}
