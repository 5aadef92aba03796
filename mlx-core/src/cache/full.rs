//! A layer state that keeps every position, in a separate growing buffer or in a slot of a pool.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::buffer::Buffer;
use super::capacity::capacity;
use super::pool::{Pooled, Slot};
use super::seen::Seen;
use crate::error::Result;

/// The keys and values of all positions.
#[derive(Default)]
pub struct FullCache {
    /// Its first `length` positions are valid.
    storage: Option<Storage>,
    length: usize,
}

/// The memory that holds the positions.
enum Storage {
    Own(Buffer),
    Slot(Slot),
}

impl Storage {
    /// Returns the positions of `range`, `[1, 2 H, T, D]`. The pool must not be written while they are in use.
    fn part(&self, range: Range<usize>) -> Result<Array> {
        match self {
            Self::Own(buffer) => buffer.slice(range),
            Self::Slot(slot) => joined(&slot.positions(range)?),
        }
    }
}

impl FullCache {
    /// Takes the buffer out of the state, because a second handle would make MLX copy it at a write. A slot is copied to a buffer.
    fn take_buffer(&mut self) -> Result<Option<Buffer>> {
        Ok(match self.storage.take() {
            Some(Storage::Own(buffer)) => Some(buffer),
            Some(Storage::Slot(slot)) => {
                let own = Buffer::from_array(joined(&slot.positions(0..self.length)?)?);
                Some(own.copy_range(0..self.length, capacity(self.length))?)
            }
            None => None,
        })
    }

    /// Appends `[1, 2 H, T, D]`, keys before values. Returns all keys and all values, `[1, H, length, D]` each.
    pub(super) fn append(&mut self, added: &Array) -> Result<(Array, Array)> {
        self.extend(added, |buffer, end| buffer.view(0..end))
    }

    /// Appends `[1, H, T, D]`. Returns all positions in one array, `[1, H, length, D]`.
    pub(super) fn append_whole(&mut self, added: &Array) -> Result<Array> {
        self.extend(added, |buffer, end| buffer.slice(0..end))
    }

    /// Appends positions. Returns the result of `view` for the buffer and the new length.
    fn extend<T>(&mut self, added: &Array, view: impl Fn(&Buffer, usize) -> Result<T>) -> Result<T> {
        let (start, end) = (self.length, self.length + added.dim(2) as usize);
        let mut buffer = match self.take_buffer()? {
            Some(buffer) if end <= buffer.capacity() => buffer,
            Some(buffer) => buffer.copy_range(0..start, capacity(end))?,
            None => Buffer::new(added, capacity(end))?,
        };
        buffer.write(start, added)?;
        let view = view(&buffer, end)?;
        self.storage = Some(Storage::Own(buffer));
        self.length = end;
        Ok(view)
    }

    /// Returns all keys and all values, `[1, H, length, D]` each; `None` before the first position.
    pub(super) fn seen(&self) -> Result<Option<(Array, Array)>> {
        let view = |storage: &Storage| match storage {
            Storage::Own(buffer) => buffer.view(0..self.length),
            Storage::Slot(slot) => {
                Buffer::from_array(joined(&slot.positions(0..self.length)?)?).view(0..self.length)
            }
        };
        self.storage.as_ref().map(view).transpose()
    }

    /// Returns its slot if it is in a pool.
    pub(super) fn slot(&self) -> Option<&Slot> {
        match &self.storage {
            Some(Storage::Slot(slot)) => Some(slot),
            _ => None,
        }
    }

    /// Sets `slot` as the storage of its positions.
    pub(super) fn put(&mut self, slot: Slot) {
        self.storage = Some(Storage::Slot(slot));
    }

    /// Adds `count` positions that were written to its slot.
    pub(super) fn grow(&mut self, count: usize) {
        self.length += count;
    }

    /// Returns all positions in one array, `[1, 2 H, length, D]`; `None` before the first position.
    pub(super) fn whole(&self) -> Result<Option<Array>> {
        self.part(0..self.length)
    }

    /// Copies the first `length` positions to a separate buffer.
    pub(super) fn fork(&self, length: usize) -> Result<Self> {
        let length = length.min(self.length);
        let storage = match &self.storage {
            Some(storage) if length > 0 => {
                let own = Buffer::from_array(storage.part(0..length)?);
                Some(Storage::Own(own.copy_range(0..length, capacity(length))?))
            }
            _ => None,
        };
        Ok(Self { storage, length })
    }

    /// Returns the positions of `range`, `[1, 2 H, T, D]`; `None` if some do not exist.
    pub(super) fn part(&self, range: Range<usize>) -> Result<Option<Array>> {
        let storage = self.storage.as_ref().filter(|_| range.end <= self.length);
        storage.map(|storage| storage.part(range)).transpose()
    }

    /// Removes the `dropped` positions after the first `kept`. Rotates the keys after them to their new positions.
    pub(super) fn shift(
        &mut self,
        kept: usize,
        dropped: usize,
        rotate: impl Fn(&Array) -> Result<Array>,
    ) -> Result<()> {
        let Some(buffer) = self.take_buffer()? else { return Ok(()) };
        let (keys, values) = buffer.view(kept + dropped..self.length)?;
        let mut shifted = buffer.copy_range(0..kept, capacity(self.length))?;
        shifted.write(kept, &concatenate(&[rotate(&keys)?, values], 1)?)?;
        // Evaluated at once, so that no two layers are in memory twice.
        shifted.array().eval()?;
        self.storage = Some(Storage::Own(shifted));
        self.length -= dropped;
        Ok(())
    }

    pub(super) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Returns handles of its buffer, or of the pool's arrays.
    pub(super) fn arrays(&self) -> Vec<Array> {
        match &self.storage {
            None => Vec::new(),
            Some(Storage::Own(buffer)) => vec![buffer.array().clone()],
            Some(Storage::Slot(slot)) => slot.arrays(),
        }
    }

    /// The bytes of its positions, without other sequences' positions.
    pub(super) fn bytes(&self) -> usize {
        match &self.storage {
            None => 0,
            Some(Storage::Own(buffer)) => buffer.bytes(),
            Some(Storage::Slot(slot)) => slot.bytes(capacity(self.length)),
        }
    }
}

/// Joins a pool's arrays to the layout of a buffer: keys before values.
fn joined(parts: &[Array]) -> Result<Array> {
    match parts {
        [only] => Ok(only.clone()),
        parts => Ok(concatenate(parts, 1)?),
    }
}

impl Pooled for FullCache {
    fn slot(&self) -> Option<&Slot> {
        self.slot()
    }

    fn put(&mut self, slot: Slot) {
        self.put(slot);
    }

    fn kept(&self) -> Range<usize> {
        0..self.length
    }

    fn parts(&self) -> Result<Vec<Array>> {
        Ok(self.seen()?.map_or_else(Vec::new, |(keys, values)| vec![keys, values]))
    }

    fn packed(&self, added: &[Array]) -> Result<Vec<Array>> {
        Ok(added.to_vec())
    }

    fn columns(&self, length: usize) -> usize {
        capacity(length)
    }

    fn grow(&mut self, count: usize) {
        self.grow(count);
    }

    fn seen(&self, parts: Vec<Array>) -> Result<Seen> {
        Seen::pair(parts)
    }
}

#[cfg(test)]
mod tests {
    use mlx_rs::ops::zeros_dtype;

    use super::*;
    use crate::array::{active_memory, peak_memory, reset_peak_memory};

    const LENGTH: usize = 4000;

    fn rows(count: usize) -> Array {
        zeros_dtype(&[1, 8, count as i32, 64], mlx_rs::Dtype::Float32).expect("it has a shape")
    }

    fn filled() -> FullCache {
        let mut cache = FullCache::default();
        cache.append(&rows(LENGTH)).expect("there is room");
        settle(&cache);
        cache
    }

    fn settle(cache: &FullCache) {
        for array in cache.arrays() {
            array.eval().expect("it can be computed");
        }
    }

    fn bytes(cache: &FullCache) -> usize {
        cache.bytes()
    }

    /// Returns the peak memory that `work` added, in bytes.
    fn taken(work: impl FnOnce()) -> usize {
        let before = active_memory().expect("a figure");
        reset_peak_memory().expect("a device");
        work();
        peak_memory().expect("a figure").saturating_sub(before)
    }

    #[test]
    fn a_step_writes_in_place() {
        let _turn = crate::device_lock::device();
        let mut cache = filled();
        let whole = bytes(&cache);
        let row = rows(1);
        row.eval().expect("it can be computed");
        for _ in 0..3 {
            let most = taken(|| {
                cache.append(&row).expect("there is room");
                settle(&cache);
            });
            assert!(most < whole / 100, "{most} bytes for a row of a cache of {whole}");
        }
    }

    #[test]
    fn a_fork_copies_what_it_needs_and_no_more() {
        let _turn = crate::device_lock::device();
        let mut cache = filled();
        let position = bytes(&cache) / capacity(LENGTH);
        for length in [1, 100, 1000, 3999] {
            let mut fork = None;
            let most = taken(|| {
                let copy = cache.fork(length).expect("it can be copied");
                settle(&copy);
                fork = Some(copy);
            });
            let needed = capacity(length) * position;
            assert_eq!(bytes(&fork.expect("the fork was made")), needed);
            // The copy, and the empty positions that are concatenated to it.
            assert!(most <= needed + capacity(1) * position, "{most} bytes where {needed} are needed");
        }
        assert!(taken(|| cache.truncate(1000)) == 0 && cache.len() == 1000);
    }
}
