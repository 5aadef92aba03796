//! The state of one sequence: that of all layers, and how it goes back.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::transforms::{async_eval, eval};

use super::checkpoints::Checkpoints;
use super::layer::{LayerCheckpoint, LayerState};
use super::state_store::{StateStore, StoreInfo};
use super::variant::Variant;
use crate::error::Result;

/// Everything that a model keeps of one sequence. All layers have the same number of positions between passes;
/// a pass extends them one after the other.
pub struct SequenceState {
    pub(super) layers: Vec<LayerState>,
    variant: Variant,
    /// Positions that context shifts removed.
    dropped: usize,
    /// How far the positions of the next rows are behind their places: pictures take fewer positions than rows.
    position_shift: i32,
    /// The positions that memory was promised for.
    promised: usize,
    checkpoints: Checkpoints,
    /// The layers after these ones that the model stores itself.
    store: Option<Box<dyn StateStore>>,
}

/// How far a state went back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a state may not have the length that was asked for"]
pub enum Rollback {
    /// It has the length that was asked for.
    Done,
    /// It has this length, that of an earlier checkpoint. The positions in between are to be computed again.
    Earlier(usize),
    /// It is unchanged, and cannot go back so far. The sequence needs a new state.
    StartOver,
}

impl SequenceState {
    /// An empty state of these layers, for passes of this variant.
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

    /// Whether all layers are in this value.
    pub(super) fn has_all_layers(&self) -> bool {
        self.store.is_none()
    }

    fn store_info(&self) -> StoreInfo {
        self.store.as_ref().map_or_else(StoreInfo::default, |store| store.info())
    }

    /// The same, empty, with keys and values quantized to so many bits in all layers that keep every position.
    #[must_use]
    pub(crate) fn quantized(mut self, bits: u8) -> Self {
        if let Some(store) = &mut self.store {
            store.quantize(bits);
        }
        let layers = self.layers.into_iter().map(|layer| layer.quantized(bits)).collect();
        Self { layers, ..self }
    }

    /// How it was computed. Only states of the same variant can stand in for each other.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// How far the positions of the next rows are behind their places.
    pub(crate) fn position_shift(&self) -> i32 {
        self.position_shift
    }

    /// Sets that for the rows of the next passes.
    pub(crate) fn set_position_shift(&mut self, shift: i32) {
        self.position_shift = shift;
    }

    /// The positions that memory was promised for; 0 by default.
    pub(crate) fn promised(&self) -> usize {
        self.promised
    }

    /// Stores the number of positions that memory was promised for. The slots of a pool may be longer than a state needs, as long as the
    /// promises to all states of the pool pay for them.
    pub fn promise(&mut self, positions: usize) {
        self.promised = positions;
    }

    /// The number of positions that all layers have. In the middle of a pass the first layers have more.
    pub fn offset(&self) -> usize {
        match &self.store {
            Some(store) => store.info().positions,
            None => self.layers.last().map_or(0, LayerState::len),
        }
    }

    /// The number of tokens that it has seen: more than it has positions after a context shift.
    pub fn seen(&self) -> usize {
        self.offset() + self.dropped
    }

    /// Removes `dropped` positions behind the first `kept`; those behind them move up. `rotate` gives a layer's keys as they are so
    /// many positions earlier.
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

    /// The shortest length that it can be cut to without a checkpoint: 0 if it has all positions. A layer with a sliding window has
    /// dropped what its next row does not see, a recurrent one cannot be cut; after a context shift no state can.
    pub fn shortest_cut(&self) -> usize {
        if self.dropped > 0 {
            return usize::MAX;
        }
        let here = self.layers.iter().map(LayerState::shortest_cut).max().unwrap_or(0);
        self.store_info().shortest_cut.max(here)
    }

    /// The longest length up to `length` that it can go back to: that length itself, or a checkpoint before it, or 0, a new state.
    pub fn nearest(&self, length: usize) -> usize {
        if length >= self.shortest_cut() {
            return length.min(self.offset());
        }
        self.checkpoints.last_until(length).map_or(0, |checkpoint| checkpoint.length)
    }

    /// Whether [`nearest`](Self::nearest) needs checkpoints to go back any further than a pass or two.
    pub fn needs_checkpoints(&self) -> bool {
        self.layers.iter().any(|layer| !layer.keeps_all()) || self.store_info().needs_checkpoints
    }

    /// Lets recurrent layers snapshot their state at each row, so that it can be cut to each length in between; or drops the snapshots.
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

    /// Whether some of its layers are recurrent.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer, LayerState::Recurrent(_)))
            || self.store_info().is_recurrent
    }

    /// Makes [`rollback`](Self::rollback) able to return to the present length, however long the sequence becomes; a `marked`
    /// checkpoint stays when others are evicted. It costs nothing in layers that can be cut, and a copy of the window in layers with one.
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

    /// What its layers need to go back to `length`, its own or that of a checkpoint; `None` if it is neither.
    pub(super) fn checkpoint_at(&self, length: usize) -> Result<Option<Vec<LayerCheckpoint>>> {
        if length == self.offset() {
            return self.layers.iter().map(LayerState::checkpoint).collect::<Result<_>>().map(Some);
        }
        Ok(self.checkpoints.last_until(length).filter(|it| it.length == length).map(|it| it.layers.clone()))
    }

    /// The lengths of its checkpoints, rising.
    pub fn checkpoints(&self) -> impl Iterator<Item = usize> {
        self.checkpoints.lengths()
    }

    /// The bytes of its checkpoints, some of which may be the state's own, too.
    pub fn checkpoint_bytes(&self) -> usize {
        self.checkpoints.bytes().max(self.store_info().checkpoint_bytes)
    }

    /// Drops all checkpoints; gives their bytes.
    pub fn drop_checkpoints(&mut self) -> usize {
        let bytes = self.checkpoint_bytes();
        self.checkpoints.clear();
        if let Some(store) = &mut self.store {
            store.drop_checkpoints();
        }
        bytes
    }

    /// Drops the checkpoint whose loss makes the smallest gap; returns its length and bytes.
    pub fn evict_checkpoint(&mut self) -> Option<(usize, usize)> {
        let before = self.checkpoint_bytes();
        let (length, _) = self.checkpoints.evict_one()?;
        if let Some(store) = &mut self.store {
            store.evict_checkpoint();
        }
        Some((length, before.saturating_sub(self.checkpoint_bytes())))
    }

    /// Goes back to the first `length` positions, or to a checkpoint before them.
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
        if length >= self.shortest_cut() {
            for layer in &mut self.layers {
                layer.truncate(length);
            }
            self.checkpoints.cut(length);
            return Rollback::Done;
        }
        let Some(checkpoint) = self.checkpoints.last_until(length) else { return Rollback::StartOver };
        let found = checkpoint.length;
        for (layer, checkpoint) in self.layers.iter_mut().zip(&checkpoint.layers) {
            layer.restore(checkpoint.clone(), found);
        }
        self.checkpoints.cut(found);
        if found == length { Rollback::Done } else { Rollback::Earlier(found) }
    }

    /// A state of its own that goes on after the first `length` positions of this one, with the same bits and with the checkpoints up
    /// to there; `None` if this one cannot [go back](Self::nearest) there. At a length that this one does not have yet, a copy of all of it.
    pub fn fork(&self, length: usize) -> Result<Option<Self>> {
        let layers: Vec<LayerState> = if length >= self.shortest_cut() {
            self.layers.iter().map(|layer| layer.fork(length)).collect::<Result<_>>()?
        } else {
            let checkpoint = self.checkpoints.last_until(length).filter(|it| it.length == length);
            let Some(checkpoint) = checkpoint else { return Ok(None) };
            let pairs = self.layers.iter().zip(&checkpoint.layers);
            pairs.map(|(layer, it)| layer.fork_at(it, length)).collect::<Result<_>>()?
        };
        let checkpoints = self.checkpoints.until(length);
        let store = self.store.as_ref().map(|store| store.fork(length)).transpose()?;
        Ok(Some(Self { checkpoints, store, ..Self::new(layers, self.variant) }))
    }

    /// The bytes of device memory that its layers hold, here or in the model's store, whichever are more;
    /// [checkpoints](Self::checkpoint_bytes) hold others.
    pub fn bytes(&self) -> usize {
        let here: usize = self.layers.iter().map(LayerState::bytes).sum();
        here.max(self.store_info().bytes)
    }

    /// Starts to compute what is pending and returns at once.
    pub fn start(&self) -> Result<()> {
        Ok(async_eval(&self.arrays())?)
    }

    /// Computes what is pending, so that no graph grows from pass to pass.
    pub fn eval(&self) -> Result<()> {
        Ok(eval(&self.arrays())?)
    }

    /// The states at these places, in the order in which the model made them.
    pub(crate) fn layers_mut(&mut self, places: Range<usize>) -> &mut [LayerState] {
        &mut self.layers[places]
    }

    /// Whether its positions are in buffers with those of other sequences, which it keeps in memory. A fork is not.
    pub fn is_pooled(&self) -> bool {
        self.layers.iter().any(LayerState::is_pooled) || self.store_info().is_pooled
    }

    fn arrays(&self) -> Vec<Array> {
        self.layers.iter().flat_map(LayerState::arrays).chain(self.checkpoints.arrays()).collect()
    }
}

#[cfg(test)]
mod tests;
