//! A layer cache that keeps every position, in a buffer that grows in steps.

use mlx_rs::Array;

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
