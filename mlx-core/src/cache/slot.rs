//! The place of one sequence in a buffer that several share.

use std::sync::{Arc, Mutex, PoisonError};

use mlx_rs::Array;

use super::buffer::Buffer;
use crate::array::slice_axis;
use crate::error::Result;

/// `[slots, 2 H, room, D]`: sequences with the same number of places, one a slot. A slot takes what a buffer of its own takes.
pub(super) type Pool = Arc<Mutex<Array>>;

/// The place of one sequence in a pool.
pub(super) struct Slot {
    pub(super) pool: Pool,
    pub(super) index: usize,
    /// Its share of the pool's bytes.
    pub(super) bytes: usize,
}

impl Slot {
    /// The same handle for as long as nothing is written to the pool.
    pub(super) fn pool_array(&self) -> Array {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The places of this slot: a view.
    pub(super) fn buffer(&self) -> Result<Buffer> {
        let index = self.index as i32;
        Ok(Buffer::from_array(slice_axis(&self.pool_array(), 0, index, index + 1)?))
    }
}
