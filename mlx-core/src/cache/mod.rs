//! The states of sequences: keys and values layer by layer, in memory and on disk.

mod buffer;
mod disk;
mod export;
mod full;
mod layer;
mod prefix;
mod quantized;
mod sequence;
mod sliding;
mod variant;

pub(crate) use disk::{BLOCK, Block, DiskCache, Saved, Tier};
pub use disk::{DiskOptions, SavedPrefix, list_saved, remove_all_saved, remove_saved};
pub use layer::{LayerState, layer_capacity};
pub(crate) use prefix::{Clock, Found, Hit, Kept, PrefixTree};
pub(crate) use quantized::GROUP;
pub use sequence::{Rollback, SequenceState};
pub use variant::Variant;

/// Buffers grow by this many positions.
const STEP: usize = 256;

/// The positions that a buffer for `length` positions has room for.
pub fn capacity(length: usize) -> usize {
    length.next_multiple_of(STEP)
}
