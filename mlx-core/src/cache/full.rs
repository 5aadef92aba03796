//! A layer cache that keeps every position, in a buffer that grows in steps and is written in place.

use mlx_rs::Array;
use mlx_rs::ops::indexing::{TryIndexMutOp, TryIndexOp};
use mlx_rs::ops::{concatenate, zeros_dtype};

use super::capacity;
use crate::array::slice_axis;
use crate::error::Result;

/// The buffer grows by this many positions.
pub(super) const STEP: usize = 256;

/// Keys and values in one buffer `[1, 2 H, capacity, D]`, of which the first `length` positions count: one write a step instead
/// of two.
#[derive(Default)]
pub struct FullCache {
    buffer: Option<Array>,
    length: usize,
}

impl FullCache {
    /// Appends `[1, 2 H, T, D]`, keys before values, and gives all keys and all values, `[1, H, length, D]` each.
    pub(super) fn update(&mut self, added: &Array) -> Result<(Array, Array)> {
        let (start, end) = (self.length, self.length + added.dim(2) as usize);
        // Taken out, so that no second handle makes the write copy the buffer.
        let mut buffer = match self.buffer.take() {
            Some(old) => grown(old, start, end)?,
            None => empty(added, end)?,
        };
        buffer.try_index_mut((.., .., start as i32..end as i32), added)?;
        let (heads, length) = (added.dim(1) / 2, end as i32);
        let keys = buffer.try_index((.., 0..heads, 0..length))?;
        let values = buffer.try_index((.., heads..2 * heads, 0..length))?;
        self.buffer = Some(buffer);
        self.length = end;
        Ok((keys, values))
    }

    /// The first `length` positions in a buffer of their own.
    pub(super) fn fork(&self, length: usize) -> Result<Self> {
        let length = length.min(self.length);
        let buffer = match &self.buffer {
            Some(buffer) if length > 0 => Some(moved(buffer, length, length)?),
            _ => None,
        };
        Ok(Self { buffer, length })
    }

    pub(super) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    pub(super) fn bytes(&self) -> usize {
        self.buffer.as_ref().map_or(0, Array::nbytes)
    }

    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.buffer.iter()
    }
}

fn empty(like: &Array, needed: usize) -> Result<Array> {
    let room = capacity(needed) as i32;
    Ok(zeros_dtype(&[like.dim(0), like.dim(1), room, like.dim(3)], like.dtype())?)
}

fn grown(buffer: Array, used: usize, needed: usize) -> Result<Array> {
    if needed <= buffer.dim(2) as usize { Ok(buffer) } else { moved(&buffer, used, needed) }
}

/// The first `used` positions in a buffer with room for `needed`.
fn moved(buffer: &Array, used: usize, needed: usize) -> Result<Array> {
    let kept = slice_axis(buffer, 2, 0, used as i32)?;
    let spare = (capacity(needed) - used) as i32;
    if spare == 0 {
        return Ok(kept.contiguous()?);
    }
    let fresh = zeros_dtype(&[buffer.dim(0), buffer.dim(1), spare, buffer.dim(3)], buffer.dtype())?;
    Ok(concatenate(&[kept, fresh], 2)?)
}
