//! The sizes of buffers. Invariant: pure.

/// Buffers grow by this many positions.
const STEP: usize = 256;

/// The positions that a buffer for `length` positions has room for.
pub fn capacity(length: usize) -> usize {
    length.next_multiple_of(STEP)
}
