//! Layers of a state that the model stores outside of it. A sequence state treats them like its other layers.

use std::any::Any;

use crate::error::Result;

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

    /// Returns the store for a downcast by the model, which knows its type.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}
