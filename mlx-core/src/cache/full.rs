//! A layer cache that keeps every position, in a buffer that grows in steps and is written in place.

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexMutOp;
use mlx_rs::ops::{concatenate, zeros_dtype};

use crate::array::slice_axis;
use crate::error::Result;

/// The buffer grows by at least this many positions.
const STEP: usize = 256;

/// Keys and values `[1, H, capacity, D]`, of which the first `length` positions count.
#[derive(Default)]
pub struct FullCache {
    buffers: Option<(Array, Array)>,
    length: usize,
}

impl FullCache {
    /// Appends keys and values `[1, H, T, D]` and gives all of them, `[1, H, length, D]`.
    pub(super) fn update(&mut self, keys: &Array, values: &Array) -> Result<(Array, Array)> {
        let (start, end) = (self.length, self.length + keys.dim(2) as usize);
        // Taken out, so that no second handle makes the write copy the buffer.
        let (mut all_keys, mut all_values) = match self.buffers.take() {
            Some((old_keys, old_values)) => (grown(old_keys, start, end)?, grown(old_values, start, end)?),
            None => (empty(keys, end)?, empty(values, end)?),
        };
        let range = start as i32..end as i32;
        all_keys.try_index_mut((.., .., range.clone()), keys)?;
        all_values.try_index_mut((.., .., range), values)?;
        let seen = (slice_axis(&all_keys, 2, 0, end as i32)?, slice_axis(&all_values, 2, 0, end as i32)?);
        self.buffers = Some((all_keys, all_values));
        self.length = end;
        Ok(seen)
    }

    pub(super) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    pub(super) fn bytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }

    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.buffers.iter().flat_map(|(keys, values)| [keys, values])
    }
}

fn empty(like: &Array, needed: usize) -> Result<Array> {
    let capacity = needed.next_multiple_of(STEP) as i32;
    Ok(zeros_dtype(&[like.dim(0), like.dim(1), capacity, like.dim(3)], like.dtype())?)
}

fn grown(buffer: Array, used: usize, needed: usize) -> Result<Array> {
    if needed <= buffer.dim(2) as usize {
        return Ok(buffer);
    }
    let kept = slice_axis(&buffer, 2, 0, used as i32)?;
    let added = (needed - used).next_multiple_of(STEP) as i32;
    let fresh = zeros_dtype(&[buffer.dim(0), buffer.dim(1), added, buffer.dim(3)], buffer.dtype())?;
    Ok(concatenate(&[kept, fresh], 2)?)
}
