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

/// The positions that the state of a layer with this `window` has room for at most, after `tokens` positions that came in passes
/// of up to `run`. Without a window, that is all of them.
pub fn layer_capacity(window: Option<usize>, tokens: usize, run: usize) -> usize {
    window.map_or(capacity(tokens), |window| sliding_capacity(window, tokens, run))
}

/// The state of one layer of one sequence.
pub enum LayerState {
    /// Keys and values of every position.
    Full(FullCache),
    /// Keys and values of the positions that the next row sees, and of some older ones.
    Sliding(SlidingCache),
    /// Keys and values of every position, quantized.
    Quantized(QuantizedCache),
    /// One latent of every position.
    Latent(LatentCache),
    /// Of constant size.
    Recurrent(RecurrentState),
}

/// What a layer needs to return to the length at which this was taken.
#[derive(Clone)]
pub(super) enum LayerCheckpoint {
    /// Nothing: the layer can be cut to any length.
    Length,
    /// What the next row sees, in a buffer of its own.
    Sliding(SlidingBuffer),
    /// Handles of arrays that the next update replaces.
    Recurrent(RecurrentState),
}

impl LayerState {
    /// An empty state for a layer whose rows see `window` positions, themselves included, or all of them.
    pub(crate) fn new(window: Option<usize>) -> Self {
        match window {
            None => Self::Full(FullCache::default()),
            Some(window) => Self::Sliding(SlidingCache::new(window)),
        }
    }

    /// An empty state of constant size.
    pub(crate) fn recurrent() -> Self {
        Self::Recurrent(RecurrentState::default())
    }

    /// An empty state that keeps latents of this width.
    pub(crate) fn latent(rank: usize) -> Self {
        Self::Latent(LatentCache::new(rank))
    }

    /// Returns the state as one that a pool can hold, if its kind allows it.
    pub(super) fn as_pooled(&mut self) -> Option<&mut dyn Pooled> {
        match self {
            Self::Full(cache) => Some(cache),
            Self::Sliding(cache) => Some(cache),
            Self::Latent(cache) => Some(cache),
            Self::Quantized(cache) if cache.has_whole_heads() => Some(cache),
            Self::Quantized(_) | Self::Recurrent(_) => None,
        }
    }

    /// The state of a recurrent layer.
    pub(crate) fn as_recurrent(&mut self) -> Result<&mut RecurrentState> {
        match self {
            Self::Recurrent(state) => Ok(state),
            _ => Err(Error::Cache("a layer that attends has no state of constant size".into())),
        }
    }

    /// The same, empty, with quantized positions where it keeps all of them.
    pub(super) fn quantized(self, bits: u8) -> Self {
        match self {
            Self::Sliding(_) | Self::Latent(_) | Self::Recurrent(_) => self,
            Self::Full(_) | Self::Quantized(_) => Self::Quantized(QuantizedCache::new(bits)),
        }
    }

    /// Appends keys and values, `[1, 2 H, T, D]`; gives the keys and the values, up to the newest, that at least one of the new
    /// rows may attend to. Whatever its window, the layer can be cut back to the length that it had before.
    pub(crate) fn append(&mut self, added: &Array) -> Result<Seen> {
        let (keys, values) = match self {
            Self::Full(cache) => cache.append(added)?,
            Self::Sliding(cache) => cache.append(added)?,
            Self::Latent(cache) => cache.append(added)?,
            Self::Quantized(cache) => return cache.append(added),
            Self::Recurrent(_) => {
                return Err(Error::Cache("a recurrent layer keeps no keys and values".into()));
            }
        };
        Ok(Seen::Plain { keys, values })
    }

    /// Returns the result of [`append`](Self::append) for the newest `count` positions, for layers that borrow keys and values.
    pub(crate) fn seen(&self, count: usize) -> Result<Seen> {
        let plain = |(keys, values)| Seen::Plain { keys, values };
        let seen = match self {
            Self::Full(cache) => cache.seen()?.map(plain),
            Self::Sliding(cache) => cache.seen(count)?.map(plain),
            Self::Quantized(cache) => cache.all()?,
            Self::Latent(_) | Self::Recurrent(_) => None,
        };
        seen.ok_or_else(|| Error::Cache("a layer has no keys and values to borrow".into()))
    }

    /// The number of positions that were appended.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Full(cache) => cache.len(),
            Self::Sliding(cache) => cache.len(),
            Self::Quantized(cache) => cache.len(),
            Self::Latent(cache) => cache.positions().len(),
            Self::Recurrent(state) => state.len(),
        }
    }

    /// Whether it keeps every position.
    pub(super) fn keeps_all(&self) -> bool {
        matches!(self, Self::Full(_) | Self::Quantized(_) | Self::Latent(_))
    }

    /// The shortest length that it can be cut to without a checkpoint.
    pub(super) fn shortest_cut(&self) -> usize {
        match self {
            Self::Full(_) | Self::Quantized(_) | Self::Latent(_) => 0,
            Self::Sliding(cache) => cache.shortest_cut(),
            Self::Recurrent(state) => state.shortest_cut(),
        }
    }

    /// Removes all positions from `length` on. The caller has checked that it can be cut there.
    pub(super) fn truncate(&mut self, length: usize) {
        match self {
            Self::Full(cache) => cache.truncate(length),
            Self::Sliding(cache) => cache.truncate(length),
            Self::Quantized(cache) => cache.truncate(length),
            Self::Latent(cache) => cache.truncate(length),
            Self::Recurrent(state) => state.truncate(length),
        }
    }

    /// What it needs to return to its present length later.
    pub(super) fn checkpoint(&self) -> Result<LayerCheckpoint> {
        Ok(match self {
            Self::Full(_) | Self::Quantized(_) | Self::Latent(_) => LayerCheckpoint::Length,
            Self::Sliding(cache) => LayerCheckpoint::Sliding(cache.fork(cache.len())?),
            Self::Recurrent(state) => LayerCheckpoint::Recurrent(state.alone()?),
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

    /// The first `length` positions in a state of its own, with the help of a checkpoint that was taken there.
    pub(super) fn fork_at(&self, checkpoint: &LayerCheckpoint, length: usize) -> Result<Self> {
        match checkpoint {
            LayerCheckpoint::Length => self.fork(length),
            LayerCheckpoint::Sliding(buffer) => Ok(Self::Sliding(buffer.fork(length)?.into())),
            LayerCheckpoint::Recurrent(state) => Ok(Self::Recurrent(state.clone())),
        }
    }

    /// The first `length` positions in a state of its own. The caller has checked that it can be cut there.
    pub(super) fn fork(&self, length: usize) -> Result<Self> {
        match self {
            Self::Full(cache) => cache.fork(length).map(Self::Full),
            Self::Sliding(cache) => Ok(Self::Sliding(cache.fork(length)?.into())),
            Self::Quantized(cache) => cache.fork(length).map(Self::Quantized),
            Self::Latent(cache) => cache.fork(length).map(Self::Latent),
            Self::Recurrent(state) => state.alone().map(Self::Recurrent),
        }
    }

    /// Removes `dropped` positions behind the first `kept`. Those behind them move up, with their keys rotated by `rotate`.
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
                Err(Error::Cache("a layer of this kind cannot drop positions in between".into()))
            }
        }
    }

    /// Positions of `range` as they were appended, `[1, 2 H, T, D]`; `None` if the layer does not have them in that form.
    pub(super) fn part(&self, range: Range<usize>) -> Result<Option<Array>> {
        match self {
            Self::Full(cache) => cache.part(range),
            Self::Latent(cache) => cache.positions().part(range),
            // Quantized positions would lose precision twice; the others have lost their first positions.
            Self::Quantized(_) | Self::Sliding(_) | Self::Recurrent(_) => Ok(None),
        }
    }

    /// Fills an empty state that does not keep every position with the [contents](LayerCheckpoint::contents) of a checkpoint at `length`.
    pub(super) fn fill(&mut self, mut arrays: Vec<Array>, length: usize) -> Result<()> {
        match self {
            Self::Recurrent(state) => *state = RecurrentState::from_contents(&arrays, length)?,
            Self::Sliding(cache) => cache.fill(arrays.pop(), length)?,
            Self::Full(_) | Self::Quantized(_) | Self::Latent(_) => {}
        }
        Ok(())
    }

    /// Handles of what holds its positions on the device; other sequences may be in it, too.
    pub(super) fn arrays(&self) -> Vec<Array> {
        match self {
            Self::Full(cache) => cache.arrays(),
            Self::Latent(cache) => cache.positions().arrays(),
            Self::Sliding(cache) => cache.arrays(),
            Self::Quantized(cache) => cache.arrays(),
            Self::Recurrent(state) => state.arrays(),
        }
    }

    /// The bytes of its own positions on the device.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Full(cache) => cache.bytes(),
            Self::Latent(cache) => cache.positions().bytes(),
            Self::Sliding(cache) => cache.bytes(),
            Self::Quantized(cache) => cache.bytes(),
            Self::Recurrent(state) => state.bytes(),
        }
    }

    /// Whether its positions are in one buffer with those of other sequences.
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
    /// Bytes of device memory that it holds, some of which may be the layer's own, too.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Length => 0,
            Self::Sliding(cache) => cache.bytes(),
            Self::Recurrent(state) => state.bytes(),
        }
    }

    /// What [`LayerState::fill`] needs.
    pub(super) fn contents(&self) -> Result<Vec<Array>> {
        match self {
            Self::Length => Ok(Vec::new()),
            Self::Sliding(cache) => Ok(cache.newest()?.into_iter().collect()),
            Self::Recurrent(state) => state.contents(),
        }
    }

    /// Handles of what it holds on the device.
    pub(super) fn arrays(&self) -> Vec<Array> {
        match self {
            Self::Length => Vec::new(),
            Self::Sliding(cache) => cache.array().into_iter().cloned().collect(),
            Self::Recurrent(state) => state.arrays(),
        }
    }
}
