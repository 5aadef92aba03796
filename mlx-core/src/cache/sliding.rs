//! A layer state for sliding-window attention. It drops older positions rarely and many at once, so that the remaining ones stay
//! contiguous and in order.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::buffer::Buffer;
use super::capacity::capacity;
use super::pool::{Pooled, Slot};
use super::seen::Seen;
use crate::error::{Error, Result};

/// The minimum number of free positions after a full buffer was moved, so that moves are rare.
const SPARE: usize = 64;

/// Returns the maximum capacity of the buffer for a sequence of `tokens` tokens, added in passes of up to `run`.
pub(super) fn sliding_capacity(window: usize, tokens: usize, run: usize) -> usize {
    capacity(tokens).min((window + run.max(SPARE)).next_multiple_of(SPARE))
}

/// The positions of a sliding window, in a separate buffer or in a slot of a pool.
pub struct SlidingCache {
    own: SlidingBuffer,
    /// The slot with the positions. If it is set, the buffer is empty.
    slot: Option<Slot>,
}

impl SlidingCache {
    /// Creates an empty state. A row attends to `window` positions, including its own; at least 1.
    pub(super) fn new(window: usize) -> Self {
        Self::from(SlidingBuffer::new(window))
    }

    /// Copies the positions from a slot to a buffer.
    fn settle(&mut self) -> Result<()> {
        if self.slot.is_some() {
            self.own = self.fork(self.own.length)?;
            self.slot = None;
        }
        Ok(())
    }

    /// Appends `[1, 2 H, T, D]`, keys before values. Returns the keys and the values, `[1, H, seen, D]` each, that at least one of the
    /// new rows attends to.
    pub(super) fn append(&mut self, added: &Array) -> Result<(Array, Array)> {
        self.settle()?;
        self.own.append(added)
    }

    /// Returns the keys and values that the newest `count` rows attend to; `None` before the first position.
    pub(super) fn seen(&self, count: usize) -> Result<Option<(Array, Array)>> {
        let Some(slot) = &self.slot else { return self.own.seen(count) };
        let length = self.own.length;
        let oldest = self.own.oldest(length.saturating_sub(count)).max(self.own.first);
        let Seen::Plain { keys, values } = Seen::pair(slot.positions(oldest..length)?)? else {
            return Ok(None);
        };
        Ok(Some((keys, values)))
    }

    /// Copies the window at `length` to a new buffer. The caller must check that the state still has these positions.
    pub(super) fn fork(&self, length: usize) -> Result<SlidingBuffer> {
        let Some(slot) = &self.slot else { return self.own.fork(length) };
        let length = length.min(self.own.length);
        let first = self.own.oldest(length).max(self.own.first);
        let mut own = SlidingBuffer { buffer: None, first: length, length, ..self.own.clone() };
        if length > first {
            let buffer = Buffer::from_array(concatenate(&slot.positions(first..length)?, 1)?);
            let capacity = sliding_capacity(own.window, length - first + 1, 1);
            own.buffer = Some(buffer.copy_range(0..length - first, capacity)?);
            own.first = first;
        }
        Ok(own)
    }

    /// Fills an empty state with the newest of the first `length` positions, `[1, 2 H, n, D]`.
    pub(super) fn fill(&mut self, newest: Option<Array>, length: usize) -> Result<()> {
        self.own.fill(newest, length)
    }

    /// The shortest length at which the next row still has all positions that it attends to.
    pub(super) fn min_truncate_length(&self) -> usize {
        self.own.min_truncate_length()
    }

    /// Removes the positions from `length` on. The caller must check that the state can be truncated there.
    pub(super) fn truncate(&mut self, length: usize) {
        self.own.length = self.own.length.min(length);
    }

    pub(super) fn len(&self) -> usize {
        self.own.length
    }

    pub(super) fn bytes(&self) -> usize {
        match &self.slot {
            Some(slot) => slot.bytes(self.columns(self.own.length)),
            None => self.own.bytes(),
        }
    }

    /// Returns handles of its buffer, or of the pool's arrays.
    pub(super) fn arrays(&self) -> Vec<Array> {
        match &self.slot {
            Some(slot) => slot.arrays(),
            None => self.own.array().into_iter().cloned().collect(),
        }
    }
}

impl From<SlidingBuffer> for SlidingCache {
    fn from(own: SlidingBuffer) -> Self {
        Self { own, slot: None }
    }
}

impl Pooled for SlidingCache {
    fn slot(&self) -> Option<&Slot> {
        self.slot.as_ref()
    }

    fn put(&mut self, slot: Slot) {
        // Positions that do not fit are older than the window.
        self.own.first = self.own.first.max(self.own.length.saturating_sub(slot.capacity()));
        (self.own.buffer, self.slot) = (None, Some(slot));
    }

    fn kept(&self) -> Range<usize> {
        self.own.first..self.own.length
    }

    fn parts(&self) -> Result<Vec<Array>> {
        if let Some(slot) = &self.slot {
            return slot.positions(self.kept());
        }
        let places = 0..self.own.length - self.own.first;
        let view = self.own.buffer.as_ref().map(|buffer| buffer.view(places)).transpose()?;
        Ok(view.map_or_else(Vec::new, |(keys, values)| vec![keys, values]))
    }

    fn packed(&self, added: &[Array]) -> Result<Vec<Array>> {
        Ok(added.to_vec())
    }

    fn columns(&self, length: usize) -> usize {
        capacity(length).min((self.own.window + SPARE).next_multiple_of(SPARE))
    }

    fn grow(&mut self, count: usize) {
        self.own.length += count;
        let capacity = self.slot.as_ref().map_or(usize::MAX, Slot::capacity);
        self.own.first = self.own.first.max(self.own.length.saturating_sub(capacity));
    }

    fn seen(&self, parts: Vec<Array>) -> Result<Seen> {
        Seen::pair(parts)
    }
}

/// The positions from `first` on. The next row attends to the last `window` positions, including its own.
#[derive(Clone)]
pub(super) struct SlidingBuffer {
    window: usize,
    /// Its first element is position `first`.
    buffer: Option<Buffer>,
    first: usize,
    length: usize,
}

impl SlidingBuffer {
    /// Creates an empty buffer. A row attends to `window` positions, including its own; at least 1.
    fn new(window: usize) -> Self {
        Self { window, buffer: None, first: 0, length: 0 }
    }

    /// Returns the oldest position that a row at `position` attends to.
    fn oldest(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.window)
    }

    /// Appends `[1, 2 H, T, D]`, keys before values. Returns the keys and the values, `[1, H, seen, D]` each, that at least one of the
    /// new rows attends to.
    pub(super) fn append(&mut self, added: &Array) -> Result<(Array, Array)> {
        let count = added.dim(2) as usize;
        let (start, end) = (self.length, self.length + count);
        let oldest = self.oldest(start);
        let capacity = sliding_capacity(self.window, end - oldest, count);
        // Taken out, because a second handle would make MLX copy the buffer at the write.
        let mut buffer = match self.buffer.take() {
            Some(buffer) if end - self.first <= buffer.capacity() => buffer,
            Some(buffer) => {
                let kept = oldest - self.first..start - self.first;
                self.first = oldest;
                buffer.copy_range(kept, capacity)?
            }
            None => Buffer::new(added, capacity)?,
        };
        buffer.write(start - self.first, added)?;
        let view = buffer.view(oldest - self.first..end - self.first)?;
        self.buffer = Some(buffer);
        self.length = end;
        Ok(view)
    }

    /// Returns the keys and values that the newest `count` rows attend to; `None` before the first position.
    pub(super) fn seen(&self, count: usize) -> Result<Option<(Array, Array)>> {
        let oldest = self.oldest(self.length.saturating_sub(count)).max(self.first);
        let places = oldest - self.first..self.length - self.first;
        self.buffer.as_ref().map(|buffer| buffer.view(places)).transpose()
    }

    /// Fills an empty state with the newest of the first `length` positions, `[1, 2 H, n, D]`.
    pub(super) fn fill(&mut self, newest: Option<Array>, length: usize) -> Result<()> {
        let kept = newest.as_ref().map_or(0, |newest| newest.dim(2) as usize);
        if kept > length || self.oldest(length) < length - kept {
            return Err(Error::Cache("a saved sliding window has too few positions".into()));
        }
        self.buffer =
            newest.map(|newest| Buffer::from_array(newest).copy_range(0..kept, kept + SPARE)).transpose()?;
        (self.first, self.length) = (length - kept, length);
        Ok(())
    }

    /// Returns the positions of the buffer, `[1, 2 H, n, D]`; `None` if it is empty.
    pub(super) fn newest(&self) -> Result<Option<Array>> {
        let places = 0..self.length - self.first;
        let filled = self.buffer.as_ref().filter(|_| !places.is_empty());
        filled.map(|buffer| buffer.slice(places.clone())).transpose()
    }

    /// The shortest length at which the next row still has all positions that it attends to.
    pub(super) fn min_truncate_length(&self) -> usize {
        let all = if self.first == 0 { 0 } else { self.first + self.window - 1 };
        all.min(self.length)
    }

    /// Copies the window at `length` to a new buffer. The caller must check that the state still has these positions.
    pub(super) fn fork(&self, length: usize) -> Result<Self> {
        let length = length.min(self.length);
        let first = self.oldest(length).max(self.first);
        let buffer = match &self.buffer {
            Some(buffer) if length > first => {
                let kept = first - self.first..length - self.first;
                let capacity = sliding_capacity(self.window, kept.len() + 1, 1);
                Some(buffer.copy_range(kept, capacity)?)
            }
            _ => None,
        };
        // Without a buffer, the window starts at the next position.
        let first = if buffer.is_some() { first } else { length };
        Ok(Self { window: self.window, buffer, first, length })
    }

    pub(super) fn bytes(&self) -> usize {
        self.buffer.as_ref().map_or(0, Buffer::bytes)
    }

    pub(super) fn array(&self) -> Option<&Array> {
        self.buffer.as_ref().map(Buffer::array)
    }
}
