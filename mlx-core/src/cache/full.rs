//! A layer state that keeps every position, in a buffer that grows in steps: one of its own, or a slot beside other sequences'.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::buffer::Buffer;
use super::capacity::capacity;
use super::pool::{Pooled, Slot};
use super::seen::Seen;
use crate::error::Result;

/// All positions from the first on.
#[derive(Default)]
pub struct FullCache {
    /// The first `length` places are in use.
    storage: Option<Storage>,
    length: usize,
}

/// Where a state's positions are.
enum Storage {
    Own(Buffer),
    Slot(Slot),
}

impl Storage {
    /// Positions of `range`, `[1, 2 H, T, D]`. Nothing may be written to a pool while they are used.
    fn part(&self, range: Range<usize>) -> Result<Array> {
        match self {
            Self::Own(buffer) => buffer.part(range),
            Self::Slot(slot) => joined(&slot.positions(range)?),
        }
    }
}

impl FullCache {
    /// Takes the buffer out of the state, so that no second handle makes a write copy it. A slot is copied.
    fn take_buffer(&mut self) -> Result<Option<Buffer>> {
        Ok(match self.storage.take() {
            Some(Storage::Own(buffer)) => Some(buffer),
            Some(Storage::Slot(slot)) => {
                let own = Buffer::from_array(joined(&slot.positions(0..self.length)?)?);
                Some(own.moved(0..self.length, capacity(self.length))?)
            }
            None => None,
        })
    }

    /// Appends `[1, 2 H, T, D]`, keys before values, and gives all keys and all values, `[1, H, length, D]` each.
    pub(super) fn append(&mut self, added: &Array) -> Result<(Array, Array)> {
        self.extend(added, |buffer, end| buffer.view(0..end))
    }

    /// Appends `[1, H, T, D]` and gives all positions as they were appended, `[1, H, length, D]`.
    pub(super) fn append_whole(&mut self, added: &Array) -> Result<Array> {
        self.extend(added, |buffer, end| buffer.part(0..end))
    }

    /// Appends positions, and gives what `view` makes of the buffer and the new length.
    fn extend<T>(&mut self, added: &Array, view: impl Fn(&Buffer, usize) -> Result<T>) -> Result<T> {
        let (start, end) = (self.length, self.length + added.dim(2) as usize);
        let mut buffer = match self.take_buffer()? {
            Some(buffer) if end <= buffer.capacity() => buffer,
            Some(buffer) => buffer.moved(0..start, capacity(end))?,
            None => Buffer::new(added, capacity(end))?,
        };
        buffer.write(start, added)?;
        let view = view(&buffer, end)?;
        self.storage = Some(Storage::Own(buffer));
        self.length = end;
        Ok(view)
    }

    /// All keys and all values, `[1, H, length, D]` each; `None` before the first.
    pub(super) fn seen(&self) -> Result<Option<(Array, Array)>> {
        let view = |storage: &Storage| match storage {
            Storage::Own(buffer) => buffer.view(0..self.length),
            Storage::Slot(slot) => {
                Buffer::from_array(joined(&slot.positions(0..self.length)?)?).view(0..self.length)
            }
        };
        self.storage.as_ref().map(view).transpose()
    }

    /// Its slot, if it has one.
    pub(super) fn slot(&self) -> Option<&Slot> {
        match &self.storage {
            Some(Storage::Slot(slot)) => Some(slot),
            _ => None,
        }
    }

    /// Stores that its positions are in `slot`.
    pub(super) fn put(&mut self, slot: Slot) {
        self.storage = Some(Storage::Slot(slot));
    }

    /// Stores that `count` positions were written to its slot.
    pub(super) fn grow(&mut self, count: usize) {
        self.length += count;
    }

    /// Returns all positions as they were appended, `[1, 2 H, length, D]`; `None` before the first.
    pub(super) fn whole(&self) -> Result<Option<Array>> {
        self.part(0..self.length)
    }

    /// The first `length` positions in a buffer of their own.
    pub(super) fn fork(&self, length: usize) -> Result<Self> {
        let length = length.min(self.length);
        let storage = match &self.storage {
            Some(storage) if length > 0 => {
                let own = Buffer::from_array(storage.part(0..length)?);
                Some(Storage::Own(own.moved(0..length, capacity(length))?))
            }
            _ => None,
        };
        Ok(Self { storage, length })
    }

    /// Positions of `range`, `[1, 2 H, T, D]`.
    pub(super) fn part(&self, range: Range<usize>) -> Result<Option<Array>> {
        let storage = self.storage.as_ref().filter(|_| range.end <= self.length);
        storage.map(|storage| storage.part(range)).transpose()
    }

    /// Removes `dropped` positions behind the first `kept`; the keys behind them are rotated to their new positions.
    pub(super) fn shift(
        &mut self,
        kept: usize,
        dropped: usize,
        rotate: impl Fn(&Array) -> Result<Array>,
    ) -> Result<()> {
        let Some(buffer) = self.take_buffer()? else { return Ok(()) };
        let (keys, values) = buffer.view(kept + dropped..self.length)?;
        let mut shifted = buffer.moved(0..kept, capacity(self.length))?;
        shifted.write(kept, &concatenate(&[rotate(&keys)?, values], 1)?)?;
        // Computed at once, so that no two layers are in memory twice.
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

    /// Returns handles of its buffer, or of the arrays of its pool.
    pub(super) fn arrays(&self) -> Vec<Array> {
        match &self.storage {
            None => Vec::new(),
            Some(Storage::Own(buffer)) => vec![buffer.array().clone()],
            Some(Storage::Slot(slot)) => slot.arrays(),
        }
    }

    /// The bytes of its own positions.
    pub(super) fn bytes(&self) -> usize {
        match &self.storage {
            None => 0,
            Some(Storage::Own(buffer)) => buffer.bytes(),
            Some(Storage::Slot(slot)) => slot.bytes(capacity(self.length)),
        }
    }
}

/// Joins the parts of a pool into the form of a buffer: keys before values.
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

    /// The peak of the bytes that some work took, beyond what was allocated before it.
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
            // The copy, and the empty places behind it while both are concatenated.
            assert!(most <= needed + capacity(1) * position, "{most} bytes where {needed} are needed");
        }
        assert!(taken(|| cache.truncate(1000)) == 0 && cache.len() == 1000);
    }
}
