//! A layer cache that keeps every position, in a buffer that grows in steps.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::buffer::Buffer;
use super::capacity;
use crate::error::Result;

/// All positions from the first on.
#[derive(Default)]
pub struct FullCache {
    /// Of its places the first `length` count.
    buffer: Option<Buffer>,
    length: usize,
}

impl FullCache {
    /// Appends `[1, 2 H, T, D]`, keys before values, and gives all keys and all values, `[1, H, length, D]` each.
    pub(super) fn update(&mut self, added: &Array) -> Result<(Array, Array)> {
        let (start, end) = (self.length, self.length + added.dim(2) as usize);
        // Taken out, so that no second handle makes the write copy the buffer.
        let mut buffer = match self.buffer.take() {
            Some(buffer) if end <= buffer.room() => buffer,
            Some(buffer) => buffer.moved(0..start, capacity(end))?,
            None => Buffer::new(added, capacity(end))?,
        };
        buffer.write(start, added)?;
        let view = buffer.view(0..end)?;
        self.buffer = Some(buffer);
        self.length = end;
        Ok(view)
    }

    /// The first `length` positions in a buffer of their own.
    pub(super) fn fork(&self, length: usize) -> Result<Self> {
        let length = length.min(self.length);
        let buffer = match &self.buffer {
            Some(buffer) if length > 0 => Some(buffer.moved(0..length, capacity(length))?),
            _ => None,
        };
        Ok(Self { buffer, length })
    }

    /// Positions of `range`, `[1, 2 H, T, D]`.
    pub(super) fn part(&self, range: Range<usize>) -> Result<Option<Array>> {
        let buffer = self.buffer.as_ref().filter(|_| range.end <= self.length);
        buffer.map(|buffer| buffer.part(range)).transpose()
    }

    /// Lets go of `dropped` positions behind the first `kept`; the keys behind them are turned to their new places.
    pub(super) fn slide(
        &mut self,
        kept: usize,
        dropped: usize,
        turn: impl Fn(&Array) -> Result<Array>,
    ) -> Result<()> {
        let Some(buffer) = self.buffer.take() else { return Ok(()) };
        let (keys, values) = buffer.view(kept + dropped..self.length)?;
        let mut slid = buffer.moved(0..kept, capacity(self.length))?;
        slid.write(kept, &concatenate(&[turn(&keys)?, values], 1)?)?;
        // One layer after the other: no two of them are there twice.
        slid.array().eval()?;
        self.buffer = Some(slid);
        self.length -= dropped;
        Ok(())
    }

    pub(super) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    pub(super) fn array(&self) -> Option<&Array> {
        self.buffer.as_ref().map(Buffer::array)
    }
}
