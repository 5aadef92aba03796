//! The heads of an attention block.

/// The number of heads and their size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    pub(super) query: usize,
    pub(super) key: usize,
    pub(super) size: usize,
}
