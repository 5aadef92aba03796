//! Computes how much of a prefix a prompt can reuse, and where its own state may be truncated.

use super::device::Device;
use crate::cache::BLOCK;
use crate::engine::schedule::undivided::Undivided;

impl Device {
    /// Returns the last chunk boundary at or before `position`, for a prompt with these undivided ranges.
    pub(in crate::engine) fn chunk_boundary(&self, position: usize, undivided: &Undivided) -> usize {
        self.chunks.chunk_boundary(position, undivided)
    }

    /// Returns the reusable length of a prefix of `length` tokens. For exact requests it ends at a chunk boundary; for others it only
    /// excludes an undivided range that the prefix would divide.
    pub(in crate::engine) fn reusable(&self, length: usize, exact: bool, undivided: &Undivided) -> usize {
        if exact {
            return self.chunk_boundary(length, undivided);
        }
        undivided.around(length).map_or(length, |part| part.start)
    }

    /// Like [`reusable`](Self::reusable), rounded down to whole blocks of saved prefixes, which end at checkpoints.
    pub(in crate::engine) fn reusable_blocks(
        &self,
        length: usize,
        exact: bool,
        undivided: &Undivided,
    ) -> usize {
        let mut length = length / BLOCK * BLOCK;
        while self.reusable(length, exact, undivided) != length {
            length = self.reusable(length, exact, undivided) / BLOCK * BLOCK;
        }
        length
    }
}
