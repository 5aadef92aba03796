//! Pools of slots: the positions of several sequences in shared arrays, so that a decode step writes and attends with one call for all
//! of them. Invariant: a step with the same sequences as the previous step copies no positions.

mod arrange;
mod columns;
mod groups;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlx_rs::Array;

use super::seen::Seen;
use crate::array::slice_axis;
use crate::error::Result;
pub(super) use arrange::{Member, arrange, by_pool};
pub(super) use groups::Need;

/// Slots with the same number of columns, one for each sequence. Position `p` is in column `p % capacity`.
pub(super) struct Pool {
    /// `[slots, H, capacity, D]` each: keys and values, latents, or packed numbers with their scales and biases.
    pub(super) parts: Vec<Array>,
    /// True for slots in use.
    pub(super) taken: Vec<bool>,
}

pub(super) type SharedPool = Arc<Mutex<Pool>>;

/// A slot of one sequence. Dropping it frees the slot.
pub(super) struct Slot {
    pool: SharedPool,
    pub(super) index: usize,
    capacity: usize,
    /// The bytes of one column of one slot.
    column_bytes: usize,
}

impl Slot {
    pub(super) fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns handles of the pool's arrays.
    pub(super) fn arrays(&self) -> Vec<Array> {
        self.lock().parts.clone()
    }

    /// The number of columns of a slot.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The bytes of this many columns of the slot.
    pub(super) fn bytes(&self, columns: usize) -> usize {
        columns.min(self.capacity) * self.column_bytes
    }

    /// Returns these positions, `[1, H, n, D]` for each array. The pool must not be written while they are used.
    pub(super) fn positions(&self, range: Range<usize>) -> Result<Vec<Array>> {
        let index = self.index as i32;
        let own = |part: &Array| {
            let own = slice_axis(part, 0, index, index + 1)?;
            columns::in_order(&own, range.clone())
        };
        self.arrays().iter().map(own).collect()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.lock().taken[self.index] = false;
    }
}

/// A layer state that a pool can hold.
pub(super) trait Pooled {
    /// Returns its slot if it is in a pool.
    fn slot(&self) -> Option<&Slot>;

    /// Sets `slot` as the storage of its positions.
    fn put(&mut self, slot: Slot);

    /// The positions that it holds. Earlier ones have been dropped.
    fn kept(&self) -> Range<usize>;

    /// Returns the positions that it holds, `[1, H, n, D]` for each array of a pool; empty before the first position.
    fn parts(&self) -> Result<Vec<Array>>;

    /// Converts keys and values, `[T, H, 1, D]` each, or latents to rows for the arrays of a pool.
    fn packed(&self, added: &[Array]) -> Result<Vec<Array>>;

    /// Returns the number of columns for `length` positions.
    fn columns(&self, length: usize) -> usize;

    /// Adds `count` positions that were written to its slot.
    fn grow(&mut self, count: usize);

    /// Converts arrays of a pool to keys and values.
    fn seen(&self, parts: Vec<Array>) -> Result<Seen>;
}
