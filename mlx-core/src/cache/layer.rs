//! The state of one layer of one sequence, by kind.

use std::ops::Range;

use mlx_rs::Array;

use super::capacity::capacity;
use super::full::FullCache;
use super::latent::LatentCache;
use super::pool::Pooled;
use super::quantized::QuantizedCache;
use super::recurrent::RecurrentState;
use super::seen::Seen;
use super::sliding::{SlidingBuffer, SlidingCache, sliding_capacity};
use crate::error::{Error, Result};

/// Returns the maximum number of positions in the buffer of a layer after `tokens` positions, added in passes of up to `run`. Without
/// a `window`, the layer keeps all positions.
pub fn layer_capacity(window: Option<usize>, tokens: usize, run: usize) -> usize {
    window.map_or(capacity(tokens), |window| sliding_capacity(window, tokens, run))
}

/// The state of one layer of one sequence.
pub enum LayerState {
    /// Keys and values of every position.
    Full(FullCache),
    /// Keys and values of the positions that the next row attends to, and of some older ones.
    Sliding(SlidingCache),
    /// Keys and values of every position, quantized.
    Quantized(QuantizedCache),
    /// One latent of every position.
    Latent(LatentCache),
    /// A state of constant size.
    Recurrent(RecurrentState),
}

/// The data with which a layer can return to the length at which it was taken.
#[derive(Clone)]
pub(super) enum LayerCheckpoint {
    /// Nothing: the layer can be truncated to any length.
    Length,
    /// A copy of the positions that the next row attends to.
    Sliding(SlidingBuffer),
    /// Handles of arrays that the next update replaces.
    Recurrent(RecurrentState),
}

impl LayerState {
    /// Creates an empty state. With a `window`, rows attend to that many positions, including their own; without, to all.
    pub(crate) fn new(window: Option<usize>) -> Self {
        match window {
            None => Self::Full(FullCache::default()),
            Some(window) => Self::Sliding(SlidingCache::new(window)),
        }
    }

    /// Creates an empty state of constant size.
    pub(crate) fn recurrent() -> Self {
        Self::Recurrent(RecurrentState::default())
    }

    /// Creates an empty state that keeps latents of this width.
    pub(crate) fn latent(rank: usize) -> Self {
        Self::Latent(LatentCache::new(rank))
    }

    /// Returns the state for use in a pool, if its kind allows it.
    pub(super) fn as_pooled(&mut self) -> Option<&mut dyn Pooled> {
        match self {
            Self::Full(cache) => Some(cache),
            Self::Sliding(cache) => Some(cache),
            Self::Latent(cache) => Some(cache),
            Self::Quantized(cache) if cache.has_whole_heads() => Some(cache),
            Self::Quantized(_) | Self::Recurrent(_) => None,
        }
    }

    /// Returns the state of a recurrent layer.
    pub(crate) fn as_recurrent(&mut self) -> Result<&mut RecurrentState> {
        match self {
            Self::Recurrent(state) => Ok(state),
            _ => Err(Error::Cache("an attention layer has no recurrent state".into())),
        }
    }

    /// Makes an empty state quantize its positions if it keeps all of them.
    pub(super) fn quantized(self, bits: u8) -> Self {
        match self {
            Self::Sliding(_) | Self::Latent(_) | Self::Recurrent(_) => self,
            Self::Full(_) | Self::Quantized(_) => Self::Quantized(QuantizedCache::new(bits)),
        }
    }

    /// Appends keys and values, `[1, 2 H, T, D]`. Returns the keys and values that at least one of the new rows may attend to. The layer
    /// can always be truncated to its previous length.
    pub(crate) fn append(&mut self, added: &Array) -> Result<Seen> {
        let (keys, values) = match self {
            Self::Full(cache) => cache.append(added)?,
            Self::Sliding(cache) => cache.append(added)?,
            Self::Latent(cache) => cache.append(added)?,
            Self::Quantized(cache) => return cache.append(added),
            Self::Recurrent(_) => {
                return Err(Error::Cache("a recurrent layer has no keys and values".into()));
            }
        };
        Ok(Seen::Plain { keys, values })
    }

    /// Returns the result of [`append`](Self::append) for the newest `count` positions, for layers that share these keys and values.
    pub(crate) fn seen(&self, count: usize) -> Result<Seen> {
        let plain = |(keys, values)| Seen::Plain { keys, values };
        let seen = match self {
            Self::Full(cache) => cache.seen()?.map(plain),
            Self::Sliding(cache) => cache.seen(count)?.map(plain),
            Self::Quantized(cache) => cache.all()?,
            Self::Latent(_) | Self::Recurrent(_) => None,
        };
        seen.ok_or_else(|| Error::Cache("a layer has no keys and values to share".into()))
    }

    /// The number of positions appended so far.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Full(cache) => cache.len(),
            Self::Sliding(cache) => cache.len(),
            Self::Quantized(cache) => cache.len(),
            Self::Latent(cache) => cache.positions().len(),
            Self::Recurrent(state) => state.len(),
        }
    }

    /// Returns true if it keeps every position.
    pub(super) fn keeps_every_position(&self) -> bool {
        matches!(self, Self::Full(_) | Self::Quantized(_) | Self::Latent(_))
    }

    /// The shortest length that it can be truncated to without a checkpoint.
    pub(super) fn min_truncate_length(&self) -> usize {
        match self {
            Self::Full(_) | Self::Quantized(_) | Self::Latent(_) => 0,
            Self::Sliding(cache) => cache.min_truncate_length(),
            Self::Recurrent(state) => state.min_truncate_length(),
        }
    }

    /// Removes all positions from `length` on. The caller must check that it can be truncated there.
    pub(super) fn truncate(&mut self, length: usize) {
        match self {
            Self::Full(cache) => cache.truncate(length),
            Self::Sliding(cache) => cache.truncate(length),
            Self::Quantized(cache) => cache.truncate(length),
            Self::Latent(cache) => cache.truncate(length),
            Self::Recurrent(state) => state.truncate(length),
        }
    }

    /// Returns the data with which it can return to its present length later.
    pub(super) fn checkpoint(&self) -> Result<LayerCheckpoint> {
        Ok(match self {
            Self::Full(_) | Self::Quantized(_) | Self::Latent(_) => LayerCheckpoint::Length,
            Self::Sliding(cache) => LayerCheckpoint::Sliding(cache.fork(cache.len())?),
            Self::Recurrent(state) => LayerCheckpoint::Recurrent(state.detached()?),
        })
    }

    /// Returns to a checkpoint that was taken at `length`.
    pub(super) fn restore(&mut self, checkpoint: LayerCheckpoint, length: usize) {
        match checkpoint {
            LayerCheckpoint::Length => self.truncate(length),
            LayerCheckpoint::Sliding(buffer) => *self = Self::Sliding(buffer.into()),
            LayerCheckpoint::Recurrent(state) => *self = Self::Recurrent(state),
        }
    }

    /// Copies the first `length` positions to a separate state, with a checkpoint taken at this length.
    pub(super) fn fork_at(&self, checkpoint: &LayerCheckpoint, length: usize) -> Result<Self> {
        match checkpoint {
            LayerCheckpoint::Length => self.fork(length),
            LayerCheckpoint::Sliding(buffer) => Ok(Self::Sliding(buffer.fork(length)?.into())),
            LayerCheckpoint::Recurrent(state) => Ok(Self::Recurrent(state.clone())),
        }
    }

    /// Copies the first `length` positions to a separate state. The caller must check that it can be truncated there.
    pub(super) fn fork(&self, length: usize) -> Result<Self> {
        match self {
            Self::Full(cache) => cache.fork(length).map(Self::Full),
            Self::Sliding(cache) => Ok(Self::Sliding(cache.fork(length)?.into())),
            Self::Quantized(cache) => cache.fork(length).map(Self::Quantized),
            Self::Latent(cache) => cache.fork(length).map(Self::Latent),
            Self::Recurrent(state) => state.detached().map(Self::Recurrent),
        }
    }

    /// Removes the `dropped` positions after the first `kept`. Later positions move up, with their keys rotated by `rotate`.
    pub(super) fn shift(
        &mut self,
        kept: usize,
        dropped: usize,
        rotate: impl Fn(&Array) -> Result<Array>,
    ) -> Result<()> {
        match self {
            Self::Full(cache) => cache.shift(kept, dropped, rotate),
            Self::Quantized(cache) => cache.shift(kept, dropped, rotate),
            Self::Sliding(_) | Self::Latent(_) | Self::Recurrent(_) => {
                Err(Error::Cache("a layer of this kind cannot drop positions from the middle".into()))
            }
        }
    }

    /// Returns the positions of `range` as they were appended, `[1, 2 H, T, D]`; `None` if the layer does not have their exact values.
    pub(super) fn part(&self, range: Range<usize>) -> Result<Option<Array>> {
        match self {
            Self::Full(cache) => cache.part(range),
            Self::Latent(cache) => cache.positions().part(range),
            // Quantizing again would lose precision; the other kinds have dropped their first positions.
            Self::Quantized(_) | Self::Sliding(_) | Self::Recurrent(_) => Ok(None),
        }
    }

    /// Fills an empty state that does not keep every position from the [contents](LayerCheckpoint::contents) of a checkpoint at `length`.
    pub(super) fn fill(&mut self, mut arrays: Vec<Array>, length: usize) -> Result<()> {
        match self {
            Self::Recurrent(state) => *state = RecurrentState::from_contents(&arrays, length)?,
            Self::Sliding(cache) => cache.fill(arrays.pop(), length)?,
            Self::Full(_) | Self::Quantized(_) | Self::Latent(_) => {}
        }
        Ok(())
    }

    /// Returns handles of the device arrays with its positions. Other sequences may share them.
    pub(super) fn arrays(&self) -> Vec<Array> {
        match self {
            Self::Full(cache) => cache.arrays(),
            Self::Latent(cache) => cache.positions().arrays(),
            Self::Sliding(cache) => cache.arrays(),
            Self::Quantized(cache) => cache.arrays(),
            Self::Recurrent(state) => state.arrays(),
        }
    }

    /// The bytes of its positions on the device, without other sequences' positions.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Full(cache) => cache.bytes(),
            Self::Latent(cache) => cache.positions().bytes(),
            Self::Sliding(cache) => cache.bytes(),
            Self::Quantized(cache) => cache.bytes(),
            Self::Recurrent(state) => state.bytes(),
        }
    }

    /// Returns true if its positions share arrays with other sequences.
    pub(super) fn is_pooled(&self) -> bool {
        match self {
            Self::Full(cache) => Pooled::slot(cache).is_some(),
            Self::Sliding(cache) => cache.slot().is_some(),
            Self::Latent(cache) => cache.slot().is_some(),
            Self::Quantized(cache) => cache.slot().is_some(),
            Self::Recurrent(state) => state.is_pooled(),
        }
    }
}

impl LayerCheckpoint {
    /// The bytes of its device memory. The layer may use some of this memory, too.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Length => 0,
            Self::Sliding(cache) => cache.bytes(),
            Self::Recurrent(state) => state.bytes(),
        }
    }

    /// Returns the arrays that [`LayerState::fill`] takes.
    pub(super) fn contents(&self) -> Result<Vec<Array>> {
        match self {
            Self::Length => Ok(Vec::new()),
            Self::Sliding(cache) => Ok(cache.newest()?.into_iter().collect()),
            Self::Recurrent(state) => state.contents(),
        }
    }

    /// Returns handles of its device arrays.
    pub(super) fn arrays(&self) -> Vec<Array> {
        match self {
            Self::Length => Vec::new(),
            Self::Sliding(cache) => cache.array().into_iter().cloned().collect(),
            Self::Recurrent(state) => state.arrays(),
        }
    }
}
