//! Buffer sizes. Invariant: pure.

/// Buffers grow by this many positions.
const STEP: usize = 256;

/// Returns the capacity, in positions, of a buffer for `length` positions.
pub fn capacity(length: usize) -> usize {
    length.next_multiple_of(STEP)
}
