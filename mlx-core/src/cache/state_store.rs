//! Layers of a state that its model stores itself. A state of sequences treats them like its other layers.

use std::any::Any;

use crate::error::Result;

/// The size of stored layers, and the ways back from it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StoreInfo {
    /// The number of positions of every layer.
    pub(crate) positions: usize,
    /// The shortest length that the layers can be cut to without a checkpoint.
    pub(crate) shortest_cut: usize,
    /// Bytes of device memory, without checkpoints.
    pub(crate) bytes: usize,
    /// Bytes of checkpoints.
    pub(crate) checkpoint_bytes: usize,
    /// Whether the layers are in buffers with those of other sequences.
    pub(crate) is_pooled: bool,
    /// Whether some layers can be cut to checkpoints only.
    pub(crate) needs_checkpoints: bool,
    /// Whether some layers are recurrent.
    pub(crate) is_recurrent: bool,
}

/// Layers of one state that its model stores. Changes are those of [`SequenceState`](super::SequenceState), in the same order; they may be
/// slow. A change without a result that fails is reported by the next pass.
pub(crate) trait StateStore: Send {
    fn info(&self) -> StoreInfo;

    /// Stores keys and values of an empty state in so many bits.
    fn quantize(&mut self, bits: u8);

    /// Removes `dropped` positions after the first `kept`.
    fn shift(&mut self, kept: usize, dropped: usize) -> Result<()>;

    /// Makes the layers able to return to their present length.
    fn checkpoint(&mut self, marked: bool) -> Result<()>;

    /// Goes back to a length, its own or that of a checkpoint.
    fn rollback(&mut self, length: usize);

    /// Drops the checkpoint whose loss makes the smallest gap.
    fn evict_checkpoint(&mut self);

    fn drop_checkpoints(&mut self);

    /// Lets recurrent layers snapshot their state at each row, or drops the snapshots.
    fn record_snapshots(&mut self, on: bool);

    /// Copies the first `length` positions into the layers of another state.
    fn fork(&self, length: usize) -> Result<Box<dyn StateStore>>;

    /// For the model, which knows the type.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}
