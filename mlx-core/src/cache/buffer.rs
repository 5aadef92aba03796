//! A buffer of keys and values that is written in place.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{concatenate, zeros_dtype};

use super::measure::measure;
use crate::array::slice_axis;
use crate::error::Result;
use crate::mlx_sys::slice_update;

/// `[1, 2 H, capacity, D]`, keys before values, so that a step writes once instead of twice. A clone shares the memory.
#[derive(Clone)]
pub(super) struct Buffer {
    array: Array,
    bytes: usize,
}

impl Buffer {
    /// Creates an empty buffer for `capacity` positions, with the heads, size and type of `added`, `[1, 2 H, T, D]`.
    pub(super) fn new(added: &Array, capacity: usize) -> Result<Self> {
        let shape = [added.dim(0), added.dim(1), capacity as i32, added.dim(3)];
        Ok(Self::from_array(zeros_dtype(&shape, added.dtype())?))
    }

    /// Wraps an array of that shape.
    pub(super) fn from_array(array: Array) -> Self {
        Self { bytes: measure([&array]), array }
    }

    /// The number of positions that fit.
    pub(super) fn capacity(&self) -> usize {
        self.array.dim(2) as usize
    }

    /// Writes `[1, 2 H, T, D]` at position `place` and after it. If anything holds a view of the buffer, MLX copies it.
    pub(super) fn write(&mut self, place: usize, added: &Array) -> Result<()> {
        let [one, heads, count, size] = [0, 1, 2, 3].map(|axis| added.dim(axis));
        let place = place as i32;
        self.array = slice_update(&self.array, added, [0, 0, place, 0], [one, heads, place + count, size])?;
        Ok(())
    }

    /// Returns the keys and the values of these positions, `[1, H, length, D]` each.
    pub(super) fn view(&self, places: Range<usize>) -> Result<(Array, Array)> {
        let (heads, places) = (self.array.dim(1) / 2, places.start as i32..places.end as i32);
        let keys = self.array.try_index((.., 0..heads, places.clone()))?;
        let values = self.array.try_index((.., heads..2 * heads, places))?;
        Ok((keys, values))
    }

    /// Returns the keys and values of these positions in one array, `[1, 2 H, length, D]`.
    pub(super) fn slice(&self, places: Range<usize>) -> Result<Array> {
        slice_axis(&self.array, 2, places.start as i32, places.end as i32)
    }

    /// Copies the positions `kept` to the start of a new buffer with a capacity of at least `capacity`.
    pub(super) fn copy_range(&self, kept: Range<usize>, capacity: usize) -> Result<Self> {
        let spare = capacity.saturating_sub(kept.len()) as i32;
        let kept = self.slice(kept)?;
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

    /// The bytes on the device, including unused positions.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
