//! The states of sequences: keys and values per layer, in memory and on disk.

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
mod seen;
mod sequence;
mod sliding;
mod state_store;
mod step;
mod variant;

pub use capacity::capacity;
pub(crate) use disk::{BLOCK, Block, DiskCache, Layer as SavedLayer, Missing, Part, Saved, Snapshot, Tier};
pub use disk::{DiskOptions, SavedPrefix, list_saved, remove_all_saved, remove_saved};
#[cfg(test)]
pub(crate) use disk::{Storage, hashed_blocks};
pub use layer::{LayerState, layer_capacity};
#[cfg(test)]
pub(crate) use prefix::visited_tokens;
pub(crate) use prefix::{Clock, Entry, Match, PrefixTree, SearchResult};
pub(crate) use quantized::GROUP;
pub(crate) use recurrent::{RecurrentArrays, RecurrentState};
pub(crate) use seen::{PackedRows, Seen};
pub use sequence::{Rollback, SequenceState};
pub(crate) use state_store::{SavedLayers, SavedPart, StateStore, StoreInfo};
pub(crate) use step::{Bucket, Columns, StepRows, append_rows, seen_rows};
pub use variant::Variant;
