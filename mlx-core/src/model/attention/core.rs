//! The part of attention between the projections of queries, keys and values and the output projection.

use mlx_rs::Array;

use super::config::AttentionConfig;
use super::heads::Heads;
use super::weights::AttentionWeights;
use crate::cache::LayerState;
use crate::error::Result;
use crate::model::batch::Batch;
use crate::weights::Weights;

/// The cases in which attention is one operation of MLX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fused {
    None,
    SingleRows,
    All,
}

/// Queries over the keys and values of their sequences.
pub(in crate::model) struct Core {
    pub(super) heads: Heads,
    pub(super) scale: f32,
    pub(super) weights: AttentionWeights,
    /// The number of positions that a row attends to, including itself. `None` is all.
    pub(super) sliding_window: Option<i32>,
    /// True if the rows of a picture attend to each other.
    pub(super) two_way_pictures: bool,
    pub(super) fused: Fused,
    /// True if one call computes the attention of all rows of a decode step.
    batched: bool,
}

impl Core {
    /// Takes `{name}.sinks` if there are sinks.
    pub(in crate::model) fn load(
        weights: &mut Weights,
        name: &str,
        config: &AttentionConfig,
        sliding_window: Option<usize>,
    ) -> Result<Self> {
        let backend = weights.backend();
        // MLX's operation has no soft caps.
        let fused = match (backend.fused_attention, backend.fused_row_attention) {
            _ if config.softcap.is_some() => Fused::None,
            (true, _) => Fused::All,
            (false, true) => Fused::SingleRows,
            (false, false) => Fused::None,
        };
        Ok(Self {
            heads: config.heads(),
            scale: config.scale,
            weights: AttentionWeights::load(weights, name, config)?,
            sliding_window: sliding_window.map(|window| window as i32),
            two_way_pictures: config.two_way_pictures && sliding_window.is_some(),
            fused,
            batched: backend.batched_decode,
        })
    }

    /// Appends `added` to the states and attends from `query`, `[T, Hq, 1, D]`. `added` is keys and values, `[T, Hk, 1, D]` each, or
    /// latents. It is `None` if the layer borrows the keys of another layer. Returns `[T, Hq, 1, width of values]`. Rows of padding have
    /// arbitrary values.
    pub(in crate::model) fn attend(
        &self,
        query: &Array,
        added: Option<&[Array]>,
        batch: &Batch,
        states: &mut [&mut LayerState],
    ) -> Result<Array> {
        if self.batched
            && !batch.is_per_span()
            && let Some(mixed) = self.batched(query, added, batch, states)?
        {
            return Ok(mixed);
        }
        self.per_span(query, added, batch, states)
    }
}
