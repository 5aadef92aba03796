//! Layers of a state that the model stores outside of it. A sequence state treats them like its other layers.

use std::any::Any;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::disk::Layer;
use crate::error::Result;

/// A part of a state that is saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SavedPart {
    /// These positions of the layers that keep all of them.
    Positions(Range<usize>),
    /// The other layers at this length.
    Checkpoint(usize),
}

/// The number of layers of a state in each part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedLayers {
    /// Layers that keep every position.
    pub(crate) kept: usize,
    /// The others.
    pub(crate) others: usize,
}

impl SavedLayers {
    /// The number of layers in this part.
    pub(crate) fn of(self, part: &SavedPart) -> usize {
        match part {
            SavedPart::Positions(_) => self.kept,
            SavedPart::Checkpoint(_) => self.others,
        }
    }
}

/// The sizes of stored layers and the limits of their rollback.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StoreInfo {
    /// The number of positions of every layer.
    pub(crate) positions: usize,
    /// The shortest length that the layers can be truncated to without a checkpoint.
    pub(crate) min_truncate_length: usize,
    /// Bytes of device memory, without checkpoints.
    pub(crate) bytes: usize,
    /// Bytes of checkpoints.
    pub(crate) checkpoint_bytes: usize,
    /// True if the layers share buffers with other sequences.
    pub(crate) is_pooled: bool,
    /// True if some layers can be truncated only to checkpoints.
    pub(crate) needs_checkpoints: bool,
    /// True if some layers are recurrent.
    pub(crate) is_recurrent: bool,
}

/// The layers of one state that its model stores. It receives all changes of
/// [`SequenceState`](super::SequenceState) in their order; they may be slow. If a change without a result fails, the next pass reports it.
pub(crate) trait StateStore: Send {
    fn info(&self) -> StoreInfo;

    /// Quantizes keys and values of an empty state to this many bits.
    fn quantize(&mut self, bits: u8);

    /// Removes `dropped` positions after the first `kept`.
    fn shift(&mut self, kept: usize, dropped: usize) -> Result<()>;

    /// Records a checkpoint at the present length.
    fn checkpoint(&mut self, marked: bool) -> Result<()>;

    /// Goes back to a length: that of the present state or of a checkpoint.
    fn rollback(&mut self, length: usize);

    /// Evicts the checkpoint whose removal leaves the smallest gap.
    fn evict_checkpoint(&mut self);

    fn drop_checkpoints(&mut self);

    /// Starts to snapshot the state of recurrent layers at each row. If `on` is false, drops the snapshots and stops.
    fn record_snapshots(&mut self, on: bool);

    /// Copies the first `length` positions to the layers of another state.
    fn fork(&self, length: usize) -> Result<Box<dyn StateStore>>;

    /// Exports a part as arrays of each layer. `None` if it no longer has exact values, or is too large.
    fn export(&self, part: &SavedPart) -> Result<Option<Vec<Vec<Layer>>>>;

    /// Imports a part: positions after the present ones of a new state, or a checkpoint. After an error the state is of no use.
    fn import(&mut self, part: &SavedPart, layers: &[&[Layer]]) -> Result<()>;

    /// Returns the store for a downcast by the model, which knows its type.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}
