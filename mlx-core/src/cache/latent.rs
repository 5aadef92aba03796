//! A layer state that keeps one vector of every position, of which keys and values are both made (multi-head latent attention).

use mlx_rs::Array;

use super::full::FullCache;
use crate::array::slice_axis;
use crate::error::Result;

/// The latents of all positions, each with its rotated key behind it.
pub struct LatentCache {
    positions: FullCache,
    /// How much of each is the latent.
    rank: usize,
}

impl LatentCache {
    /// An empty one, for latents of this width.
    pub(super) fn new(rank: usize) -> Self {
        Self { positions: FullCache::default(), rank }
    }

    /// Appends `[1, 1, T, rank + rotated]`; gives all positions in that form, as keys, and their latents alone, as values.
    pub(super) fn append(&mut self, added: &Array) -> Result<(Array, Array)> {
        let keys = self.positions.append_whole(added)?;
        let values = slice_axis(&keys, 3, 0, self.rank as i32)?;
        Ok((keys, values))
    }

    /// The first `length` positions in a buffer of their own.
    pub(super) fn fork(&self, length: usize) -> Result<Self> {
        Ok(Self { positions: self.positions.fork(length)?, rank: self.rank })
    }

    pub(super) fn truncate(&mut self, length: usize) {
        self.positions.truncate(length);
    }

    /// What holds the positions.
    pub(super) fn positions(&self) -> &FullCache {
        &self.positions
    }
}
