//! The states of sequences: keys and values layer by layer, in memory and on disk.

mod buffer;
mod capacity;
mod checkpoints;
mod disk;
mod export;
mod full;
mod latent;
mod layer;
mod measure;
mod pool;
mod prefix;
mod quantized;
mod recurrent;
mod sequence;
mod sliding;
mod slot;
mod state_store;
mod variant;

pub use capacity::capacity;
pub(crate) use disk::{BLOCK, Block, DiskCache, Missing, Part, Saved, Snapshot, Tier};
pub use disk::{DiskOptions, SavedPrefix, list_saved, remove_all_saved, remove_saved};
#[cfg(test)]
pub(crate) use disk::{Storage, hashed_blocks};
pub use layer::{LayerState, layer_capacity};
pub(crate) use pool::{Bucket, append_rows};
#[cfg(test)]
pub(crate) use prefix::visited_tokens;
pub(crate) use prefix::{Clock, Entry, Match, PrefixTree, SearchResult};
pub(crate) use quantized::GROUP;
pub(crate) use recurrent::RecurrentState;
pub use sequence::{Rollback, SequenceState};
pub(crate) use state_store::{StateStore, StoreInfo};
pub use variant::Variant;
