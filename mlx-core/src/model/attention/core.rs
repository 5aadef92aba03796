//! What attends: everything between the projections of a layer and its output.

use mlx_rs::Array;

use super::config::AttentionConfig;
use super::heads::Heads;
use super::weights::AttentionWeights;
use crate::cache::LayerState;
use crate::error::Result;
use crate::model::batch::Batch;
use crate::weights::Weights;

/// Which attention is one operation.
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
    /// How many positions a row sees, itself included; all of them if `None`.
    pub(super) sliding_window: Option<i32>,
    /// Whether the rows of a picture see each other.
    pub(super) two_way_pictures: bool,
    pub(super) fused: Fused,
    /// Whether the rows of a decode step attend at once.
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
        // MLX's operation knows no soft caps.
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

    /// Appends `added`, keys and values of `[T, Hk, 1, D]` each or latents, to the states, unless the layer borrows what another has appended, and attends from `query`,
    /// `[T, Hq, 1, D]`. The result is `[T, Hq, 1, width of values]`; padding gives anything.
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
