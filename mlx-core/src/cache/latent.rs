//! A layer state that keeps one latent vector per position. Keys and values are computed from it (multi-head latent attention).

use std::ops::Range;

use mlx_rs::Array;

use super::full::FullCache;
use super::pool::{Pooled, Slot};
use super::seen::Seen;
use crate::array::slice_axis;
use crate::error::Result;

/// The latents of all positions, each followed by its rotated key.
pub struct LatentCache {
    positions: FullCache,
    /// The width of a latent.
    rank: usize,
}

impl LatentCache {
    /// Creates an empty state for latents of this width.
    pub(super) fn new(rank: usize) -> Self {
        Self { positions: FullCache::default(), rank }
    }

    /// Appends `[1, 1, T, rank + rotated]`. Returns all positions in this form as keys, and only their latents as values.
    pub(super) fn append(&mut self, added: &Array) -> Result<(Array, Array)> {
        let keys = self.positions.append_whole(added)?;
        self.view(keys)
    }

    /// Splits positions into keys, which are the whole rows, and values, which are only the latents.
    fn view(&self, keys: Array) -> Result<(Array, Array)> {
        let values = slice_axis(&keys, 3, 0, self.rank as i32)?;
        Ok((keys, values))
    }

    /// Copies the first `length` positions to a separate buffer.
    pub(super) fn fork(&self, length: usize) -> Result<Self> {
        Ok(Self { positions: self.positions.fork(length)?, rank: self.rank })
    }

    pub(super) fn truncate(&mut self, length: usize) {
        self.positions.truncate(length);
    }

    /// The positions.
    pub(super) fn positions(&self) -> &FullCache {
        &self.positions
    }
}

impl Pooled for LatentCache {
    fn slot(&self) -> Option<&Slot> {
        self.positions.slot()
    }

    fn put(&mut self, slot: Slot) {
        self.positions.put(slot);
    }

    fn kept(&self) -> Range<usize> {
        self.positions.kept()
    }

    fn parts(&self) -> Result<Vec<Array>> {
        Ok(self.positions.whole()?.into_iter().collect())
    }

    fn packed(&self, added: &[Array]) -> Result<Vec<Array>> {
        Ok(added.to_vec())
    }

    fn columns(&self, length: usize) -> usize {
        self.positions.columns(length)
    }

    fn grow(&mut self, count: usize) {
        self.positions.grow(count);
    }

    fn seen(&self, parts: Vec<Array>) -> Result<Seen> {
        let [keys] = Seen::parts(parts)?;
        let (keys, values) = self.view(keys)?;
        Ok(Seen::Plain { keys, values })
    }
}
