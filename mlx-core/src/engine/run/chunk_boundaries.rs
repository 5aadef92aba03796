//! How far a prompt can take over what another one has computed, and where a state of its own may be cut.

use super::device::Device;
use crate::cache::BLOCK;
use crate::engine::schedule::undivided::Undivided;

impl Device {
    /// The last chunk boundary at or before a position of a prompt with such parts.
    pub(in crate::engine) fn chunk_boundary(&self, position: usize, undivided: &Undivided) -> usize {
        self.chunks.chunk_boundary(position, undivided)
    }

    /// How much of a prefix of `length` tokens a prompt with such parts may reuse: all of it but a divided part, or whole chunks in an exact
    /// request.
    pub(in crate::engine) fn reusable(&self, length: usize, exact: bool, undivided: &Undivided) -> usize {
        if exact {
            return self.chunk_boundary(length, undivided);
        }
        undivided.around(length).map_or(length, |part| part.start)
    }

    /// The same in whole blocks of saved prefixes, at whose ends checkpoints lie.
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
