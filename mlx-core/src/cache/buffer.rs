//! Keys and values side by side in one buffer that is written in place.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{concatenate, zeros_dtype};

use super::measure::measure;
use crate::array::slice_axis;
use crate::error::Result;
use crate::mlx_sys::slice_update;

/// `[1, 2 H, capacity, D]`, keys before values: one write a step instead of two. A clone is a second handle of the same memory.
#[derive(Clone)]
pub(super) struct Buffer {
    array: Array,
    bytes: usize,
}

impl Buffer {
    /// An empty one with `capacity` places for positions like those of `added`, `[1, 2 H, T, D]`.
    pub(super) fn new(added: &Array, capacity: usize) -> Result<Self> {
        let shape = [added.dim(0), added.dim(1), capacity as i32, added.dim(3)];
        Ok(Self::from_array(zeros_dtype(&shape, added.dtype())?))
    }

    /// What is in `array`, of that shape.
    pub(super) fn from_array(array: Array) -> Self {
        Self { bytes: measure([&array]), array }
    }

    /// How many positions there are places for.
    pub(super) fn capacity(&self) -> usize {
        self.array.dim(2) as usize
    }

    /// Writes `[1, 2 H, T, D]` from `place` on. Nothing may hold a view of the buffer, or it is copied.
    pub(super) fn write(&mut self, place: usize, added: &Array) -> Result<()> {
        let [one, heads, count, size] = [0, 1, 2, 3].map(|axis| added.dim(axis));
        let place = place as i32;
        self.array = slice_update(&self.array, added, [0, 0, place, 0], [one, heads, place + count, size])?;
        Ok(())
    }

    /// The keys and the values, `[1, H, length, D]` each, of these places.
    pub(super) fn view(&self, places: Range<usize>) -> Result<(Array, Array)> {
        let (heads, places) = (self.array.dim(1) / 2, places.start as i32..places.end as i32);
        let keys = self.array.try_index((.., 0..heads, places.clone()))?;
        let values = self.array.try_index((.., heads..2 * heads, places))?;
        Ok((keys, values))
    }

    /// Both together, `[1, 2 H, length, D]`.
    pub(super) fn part(&self, places: Range<usize>) -> Result<Array> {
        slice_axis(&self.array, 2, places.start as i32, places.end as i32)
    }

    /// Copies the positions `kept` to the beginning of a new buffer with at least `capacity` places.
    pub(super) fn moved(&self, kept: Range<usize>, capacity: usize) -> Result<Self> {
        let spare = capacity.saturating_sub(kept.len()) as i32;
        let kept = self.part(kept)?;
        if spare == 0 {
            return Ok(Self::from_array(kept.contiguous()?));
        }
        let shape = [self.array.dim(0), self.array.dim(1), spare, self.array.dim(3)];
        let fresh = zeros_dtype(&shape, self.array.dtype())?;
        Ok(Self::from_array(concatenate(&[kept, fresh], 2)?))
    }

    pub(super) fn array(&self) -> &Array {
        &self.array
    }

    /// The bytes on the device, with unused positions.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
