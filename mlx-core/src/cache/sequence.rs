//! The state of one sequence: that of all layers, and how it goes back.

use mlx_rs::Array;
use mlx_rs::transforms::{async_eval, eval};

use super::layer::{LayerCheckpoint, LayerState};
use super::variant::Variant;
use crate::error::Result;

/// Everything that a model keeps of one sequence. All layers have the same number of positions between passes;
/// a pass extends them one after the other.
pub struct SequenceState {
    pub(super) layers: Vec<LayerState>,
    variant: Variant,
    /// Positions that context shifts removed.
    dropped: usize,
    checkpoint: Option<Checkpoint>,
}

/// A length that the state can return to.
struct Checkpoint {
    length: usize,
    layers: Vec<LayerCheckpoint>,
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
        Self { layers, variant, dropped: 0, checkpoint: None }
    }

    /// The same, empty, with keys and values quantized to so many bits in all layers that keep every position.
    #[must_use]
    pub(crate) fn quantized(self, bits: u8) -> Self {
        let layers = self.layers.into_iter().map(|layer| layer.quantized(bits)).collect();
        Self { layers, ..self }
    }

    /// How it was computed. Only states of the same variant can stand in for each other.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// The number of positions that all layers have. In the middle of a pass the first layers have more.
    pub fn offset(&self) -> usize {
        self.layers.last().map_or(0, LayerState::len)
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
        self.checkpoint = None;
        for (index, layer) in self.layers.iter_mut().enumerate() {
            layer.shift(kept, dropped, |keys| rotate(index, keys))?;
        }
        self.dropped += dropped;
        Ok(())
    }

    /// The shortest length that it can be cut to without a checkpoint: 0 if it has all positions. A layer with a sliding window has
    /// dropped what its next row does not see; after a context shift a state cannot be cut at all.
    pub fn shortest_cut(&self) -> usize {
        if self.dropped > 0 {
            return usize::MAX;
        }
        self.layers.iter().map(LayerState::shortest_cut).max().unwrap_or(0)
    }

    /// Whether the state can be cut to `length` positions without a checkpoint.
    pub fn reaches(&self, length: usize) -> bool {
        length >= self.shortest_cut()
    }

    /// Makes [`rollback`](Self::rollback) able to return to the present length, however long the sequence becomes. There is one
    /// checkpoint; it takes the place of an older one. It costs nothing in layers that can be cut; a layer with a window is copied once, by its
    /// next append.
    pub fn checkpoint(&mut self) {
        let layers = self.layers.iter().map(LayerState::checkpoint).collect();
        self.checkpoint = (self.dropped == 0).then(|| Checkpoint { length: self.offset(), layers });
    }

    /// Goes back to the first `length` positions, or to a checkpoint before them. A state can always go back to where its last
    /// pass began.
    pub fn rollback(&mut self, length: usize) -> Rollback {
        if self.reaches(length) {
            for layer in &mut self.layers {
                layer.truncate(length);
            }
            self.checkpoint.take_if(|checkpoint| checkpoint.length > length);
            return Rollback::Done;
        }
        match self.checkpoint.take_if(|checkpoint| checkpoint.length <= length) {
            Some(checkpoint) => self.restore(checkpoint, length),
            None => Rollback::StartOver,
        }
    }

    fn restore(&mut self, Checkpoint { length, layers }: Checkpoint, wanted: usize) -> Rollback {
        for (layer, checkpoint) in self.layers.iter_mut().zip(layers) {
            layer.restore(checkpoint, length);
        }
        if length == wanted { Rollback::Done } else { Rollback::Earlier(length) }
    }

    /// A state of its own that goes on after the first `length` positions of this one, with the same bits; `None` if this one does
    /// not [reach](Self::reaches) so far back. At a length that this one does not have yet, a copy of all of it.
    pub fn fork(&self, length: usize) -> Result<Option<Self>> {
        if !self.reaches(length) {
            return Ok(None);
        }
        let layers = self.layers.iter().map(|layer| layer.fork(length)).collect::<Result<_>>()?;
        Ok(Some(Self::new(layers, self.variant)))
    }

    /// The bytes of device memory that it holds, with what a checkpoint may hold beside it.
    pub fn bytes(&self) -> usize {
        let held = self.checkpoint.iter().flat_map(|checkpoint| &checkpoint.layers);
        self.layers.iter().map(LayerState::bytes).sum::<usize>()
            + held.map(LayerCheckpoint::bytes).sum::<usize>()
    }

    /// Starts to compute what is pending and returns at once.
    pub fn start(&self) -> Result<()> {
        Ok(async_eval(&self.arrays())?)
    }

    /// Computes what is pending, so that no graph grows from pass to pass.
    pub fn eval(&self) -> Result<()> {
        Ok(eval(&self.arrays())?)
    }

    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut LayerState {
        &mut self.layers[layer]
    }

    /// Whether its positions are in buffers with those of other sequences, which it keeps in memory. A fork is not.
    pub fn is_pooled(&self) -> bool {
        self.layers.iter().any(LayerState::is_pooled)
    }

    fn arrays(&self) -> Vec<Array> {
        self.layers.iter().flat_map(LayerState::arrays).collect()
    }
}
