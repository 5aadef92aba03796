//! The state of one sequence across all layers, with checkpoints and rollback.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::transforms::{async_eval, eval};

use super::checkpoints::Checkpoints;
use super::layer::{LayerCheckpoint, LayerState};
use super::state_store::{SavedLayers, StateStore, StoreInfo};
use super::variant::Variant;
use crate::error::Result;

/// The complete state of one sequence in a model. Between passes, all layers have the same number of positions. A pass extends
/// one layer after the other.
pub struct SequenceState {
    pub(super) layers: Vec<LayerState>,
    variant: Variant,
    /// The number of positions that context shifts removed.
    dropped: usize,
    /// The position of the next row minus its index. It is negative after pictures, which take fewer positions than rows.
    position_shift: i32,
    /// The number of positions for which memory was promised.
    promised: usize,
    checkpoints: Checkpoints,
    /// Layers after these, which the model stores itself.
    store: Option<Box<dyn StateStore>>,
}

/// The result of a rollback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a state may not have the length that was asked for"]
pub enum Rollback {
    /// The state has the requested length.
    Done,
    /// The state has this length, that of an earlier checkpoint. The positions up to the requested length must be recomputed.
    Earlier(usize),
    /// The state is unchanged, because it cannot go back that far. The sequence needs a new state.
    StartOver,
}

impl SequenceState {
    /// Creates an empty state with these layers, for passes of this variant.
    pub(crate) fn new(layers: Vec<LayerState>, variant: Variant) -> Self {
        Self {
            layers,
            variant,
            dropped: 0,
            position_shift: 0,
            promised: 0,
            checkpoints: Checkpoints::default(),
            store: None,
        }
    }

    /// Adds layers that the model stores itself, after the others.
    #[must_use]
    pub(crate) fn with_store(self, store: Box<dyn StateStore>) -> Self {
        Self { store: Some(store), ..self }
    }

    /// The layers that the model stores itself.
    pub(crate) fn store_mut(&mut self) -> Option<&mut (dyn StateStore + 'static)> {
        self.store.as_deref_mut()
    }

    /// The layers that the model stores itself.
    pub(super) fn store(&self) -> Option<&dyn StateStore> {
        self.store.as_deref()
    }

    /// The number of its layers, without those of a store, in each saved part.
    pub(crate) fn saved_layers(&self) -> SavedLayers {
        let kept = self.layers.iter().filter(|layer| layer.keeps_every_position()).count();
        SavedLayers { kept, others: self.layers.len() - kept }
    }

    /// The number of positions in the layers that keep all of them; 0 if there are none.
    pub(super) fn offset_of_kept(&self) -> usize {
        self.layers.iter().find(|layer| layer.keeps_every_position()).map_or(0, LayerState::len)
    }

    fn store_info(&self) -> StoreInfo {
        self.store.as_ref().map_or_else(StoreInfo::default, |store| store.info())
    }

    /// Makes an empty state quantize keys and values to this many bits, in all layers that keep every position.
    #[must_use]
    pub(crate) fn quantized(mut self, bits: u8) -> Self {
        if let Some(store) = &mut self.store {
            store.quantize(bits);
        }
        let layers = self.layers.into_iter().map(|layer| layer.quantized(bits)).collect();
        Self { layers, ..self }
    }

    /// The variant that it was computed with. Only states of the same variant are interchangeable.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// The position of the next row minus its index.
    pub(crate) fn position_shift(&self) -> i32 {
        self.position_shift
    }

    /// Sets the [position shift](Self::position_shift) for the next passes.
    pub(crate) fn set_position_shift(&mut self, shift: i32) {
        self.position_shift = shift;
    }

    /// The number of positions for which memory was promised; 0 by default.
    pub(crate) fn promised(&self) -> usize {
        self.promised
    }

    /// Sets the number of positions for which memory was promised. The slots of a pool may be longer than a state needs if the
    /// promises to all its states cover them.
    pub fn promise(&mut self, positions: usize) {
        self.promised = positions;
    }

    /// The number of positions in all layers. In the middle of a pass the first layers have more.
    pub fn offset(&self) -> usize {
        match &self.store {
            Some(store) => store.info().positions,
            None => self.layers.last().map_or(0, LayerState::len),
        }
    }

    /// The number of tokens processed. After a context shift it exceeds the number of positions.
    pub fn seen(&self) -> usize {
        self.offset() + self.dropped
    }

    /// Removes the `dropped` positions after the first `kept`. Later positions move up. `rotate` takes a layer's index and its keys, and
    /// returns the keys rotated to their new positions.
    pub(crate) fn shift(
        &mut self,
        kept: usize,
        dropped: usize,
        rotate: impl Fn(usize, &Array) -> Result<Array>,
    ) -> Result<()> {
        self.checkpoints.clear();
        for (index, layer) in self.layers.iter_mut().enumerate() {
            layer.shift(kept, dropped, |keys| rotate(index, keys))?;
        }
        if let Some(store) = &mut self.store {
            store.shift(kept, dropped)?;
        }
        self.dropped += dropped;
        Ok(())
    }

    /// The shortest length that it can be truncated to without a checkpoint; 0 if it has all positions. A sliding-window layer drops old
    /// positions, and a recurrent layer cannot be truncated. After a context shift, no state can.
    pub fn min_truncate_length(&self) -> usize {
        if self.dropped > 0 {
            return usize::MAX;
        }
        let here = self.layers.iter().map(LayerState::min_truncate_length).max().unwrap_or(0);
        self.store_info().min_truncate_length.max(here)
    }

    /// Returns the longest length up to `length` that it can go back to: `length` itself, a checkpoint, or 0 for a new state.
    pub fn nearest(&self, length: usize) -> usize {
        if length >= self.min_truncate_length() {
            return length.min(self.offset());
        }
        self.checkpoints.last_at_or_before(length).map_or(0, |checkpoint| checkpoint.length)
    }

    /// Returns true if it can go back further than a pass or two only with checkpoints.
    pub fn needs_checkpoints(&self) -> bool {
        self.layers.iter().any(|layer| !layer.keeps_every_position()) || self.store_info().needs_checkpoints
    }

    /// Makes recurrent layers snapshot their state at each row, so that it can be truncated to any of them. If `on` is false, drops the snapshots.
    pub(crate) fn record_snapshots(&mut self, on: bool) {
        for layer in &mut self.layers {
            if let LayerState::Recurrent(state) = layer {
                state.record_snapshots(on);
            }
        }
        if let Some(store) = &mut self.store {
            store.record_snapshots(on);
        }
    }

    /// Returns true if some layers are recurrent.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer, LayerState::Recurrent(_)))
            || self.store_info().is_recurrent
    }

    /// Records a checkpoint, so that [`rollback`](Self::rollback) can return to the present length at any later time. A `marked` checkpoint
    /// stays when others are evicted. Sliding-window layers copy their window; layers that can be truncated copy nothing.
    pub fn checkpoint(&mut self, marked: bool) -> Result<()> {
        if self.dropped == 0 && self.offset() > 0 && self.needs_checkpoints() {
            let layers = self.layers.iter().map(LayerState::checkpoint).collect::<Result<_>>()?;
            self.checkpoints.push(self.offset(), layers, marked);
            if let Some(store) = &mut self.store {
                store.checkpoint(marked)?;
            }
        }
        Ok(())
    }

    /// Returns the checkpoints of its layers at `length`, which must be its own length or that of a checkpoint; otherwise `None`.
    pub(super) fn checkpoint_at(&self, length: usize) -> Result<Option<Vec<LayerCheckpoint>>> {
        if length == self.offset() {
            return self.layers.iter().map(LayerState::checkpoint).collect::<Result<_>>().map(Some);
        }
        Ok(self
            .checkpoints
            .last_at_or_before(length)
            .filter(|it| it.length == length)
            .map(|it| it.layers.clone()))
    }

    /// The lengths of its checkpoints, ascending.
    pub fn checkpoints(&self) -> impl Iterator<Item = usize> {
        self.checkpoints.lengths()
    }

    /// The bytes of its checkpoints. Its layers may use some of this memory, too.
    pub fn checkpoint_bytes(&self) -> usize {
        self.checkpoints.bytes().max(self.store_info().checkpoint_bytes)
    }

    /// Drops all checkpoints. Returns their bytes.
    pub fn drop_checkpoints(&mut self) -> usize {
        let bytes = self.checkpoint_bytes();
        self.checkpoints.clear();
        if let Some(store) = &mut self.store {
            store.drop_checkpoints();
        }
        bytes
    }

    /// Evicts the checkpoint whose removal leaves the smallest gap. Returns its length and the freed bytes.
    pub fn evict_checkpoint(&mut self) -> Option<(usize, usize)> {
        let before = self.checkpoint_bytes();
        let (length, _) = self.checkpoints.evict_one()?;
        if let Some(store) = &mut self.store {
            store.evict_checkpoint();
        }
        Some((length, before.saturating_sub(self.checkpoint_bytes())))
    }

    /// Goes back to the first `length` positions, or else to the last checkpoint before them.
    pub fn rollback(&mut self, length: usize) -> Rollback {
        let outcome = self.roll_back_here(length);
        let reached = match outcome {
            Rollback::Done => length,
            Rollback::Earlier(found) => found,
            Rollback::StartOver => return outcome,
        };
        if let Some(store) = &mut self.store {
            store.rollback(reached);
        }
        outcome
    }

    fn roll_back_here(&mut self, length: usize) -> Rollback {
        if length >= self.min_truncate_length() {
            for layer in &mut self.layers {
                layer.truncate(length);
            }
            self.checkpoints.truncate(length);
            return Rollback::Done;
        }
        let Some(checkpoint) = self.checkpoints.last_at_or_before(length) else { return Rollback::StartOver };
        let found = checkpoint.length;
        for (layer, checkpoint) in self.layers.iter_mut().zip(&checkpoint.layers) {
            layer.restore(checkpoint.clone(), found);
        }
        self.checkpoints.truncate(found);
        if found == length { Rollback::Done } else { Rollback::Earlier(found) }
    }

    /// Copies the first `length` positions, with the checkpoints up to there, into a separate state with the same bits. Returns `None` if
    /// this state cannot [go back](Self::nearest) to `length`. If `length` exceeds its own length, copies the whole state.
    pub fn fork(&self, length: usize) -> Result<Option<Self>> {
        let layers: Vec<LayerState> = if length >= self.min_truncate_length() {
            self.layers.iter().map(|layer| layer.fork(length)).collect::<Result<_>>()?
        } else {
            let checkpoint = self.checkpoints.last_at_or_before(length).filter(|it| it.length == length);
            let Some(checkpoint) = checkpoint else { return Ok(None) };
            let pairs = self.layers.iter().zip(&checkpoint.layers);
            pairs.map(|(layer, it)| layer.fork_at(it, length)).collect::<Result<_>>()?
        };
        let checkpoints = self.checkpoints.until(length);
        let store = self.store.as_ref().map(|store| store.fork(length)).transpose()?;
        Ok(Some(Self { checkpoints, store, ..Self::new(layers, self.variant) }))
    }

    /// The bytes of device memory of its layers: the larger of the layers in this value and those in the store. Excludes
    /// [checkpoints](Self::checkpoint_bytes).
    pub fn bytes(&self) -> usize {
        let here: usize = self.layers.iter().map(LayerState::bytes).sum();
        here.max(self.store_info().bytes)
    }

    /// Starts pending computations and returns at once.
    pub fn start(&self) -> Result<()> {
        Ok(async_eval(&self.arrays())?)
    }

    /// Evaluates pending computations, so that no graph grows from pass to pass.
    pub fn eval(&self) -> Result<()> {
        Ok(eval(&self.arrays())?)
    }

    /// The states of these layers, in the order in which the model created them.
    pub(crate) fn layers_mut(&mut self, places: Range<usize>) -> &mut [LayerState] {
        &mut self.layers[places]
    }

    /// Returns true if its positions share buffers with other sequences, and so keep these buffers in memory. A fork is never pooled.
    pub fn is_pooled(&self) -> bool {
        self.layers.iter().any(LayerState::is_pooled) || self.store_info().is_pooled
    }

    fn arrays(&self) -> Vec<Array> {
        self.layers.iter().flat_map(LayerState::arrays).chain(self.checkpoints.arrays()).collect()
    }
}

#[cfg(test)]
mod tests;
