//! Key and value caches: one per sequence, one layer cache per layer.

mod full;

use mlx_rs::Array;
use mlx_rs::transforms::eval;

use crate::error::Result;
use full::FullCache;

/// What one layer remembers of one sequence.
pub enum LayerCache {
    /// Every position.
    Full(FullCache),
}

impl LayerCache {
    pub(crate) fn full() -> Self {
        Self::Full(FullCache::default())
    }

    /// Appends keys and values `[1, H, T, D]`; gives all that the new rows may attend to.
    pub(crate) fn update(&mut self, keys: &Array, values: &Array) -> Result<(Array, Array)> {
        match self {
            Self::Full(cache) => cache.update(keys, values),
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

/// What a model remembers of one sequence. All layers hold the same number of positions between passes.
pub struct SequenceCache {
    layers: Vec<LayerCache>,
}

impl SequenceCache {
    pub(crate) fn new(layers: Vec<LayerCache>) -> Self {
        Self { layers }
    }

    /// The number of positions that are held.
    pub fn offset(&self) -> usize {
        self.layers.first().map_or(0, LayerCache::length)
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

    /// Computes what is still pending, so that no graph grows from pass to pass.
    pub fn eval(&self) -> Result<()> {
        Ok(eval(self.layers.iter().flat_map(LayerCache::arrays))?)
    }

    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut LayerCache {
        &mut self.layers[layer]
    }
}
