//! Grouped-query attention over the states of sequences (Ainslie et al., 2023, arXiv:2305.13245).

mod batched;
mod config;
mod core;
mod heads;
mod per_span;
mod projections;
mod qk_norm;
mod temperature;
mod weights;

use mlx_rs::Array;
use mlx_rs::ops::{concatenate, multiply, sigmoid};

use super::batch::Batch;
use super::linear::{Linear, Part};
use super::rope::Rotary;
use crate::array::slice_axis;
use crate::cache::LayerState;
use crate::error::Result;
use crate::weights::Weights;
pub use config::{AttentionBiases, AttentionConfig, Projections};
pub(super) use core::Core;
use qk_norm::QkNorm;
pub use qk_norm::{QkNormConfig, QkNormScope};
pub(super) use temperature::AttentionTemperature;
pub use temperature::AttentionTemperatureConfig;

/// Queries, keys and values as one product, norms, rope, attention, output projection.
pub(super) struct Attention {
    qkv: Linear,
    output: Linear,
    norm: Option<QkNorm>,
    norm_after_rope: bool,
    temperature: Option<AttentionTemperature>,
    output_gate: bool,
    core: Core,
}

impl Attention {
    /// Takes the projections under `{name}.`, for a residual stream of width `hidden`. A row sees `sliding_window` positions, itself
    /// included, or all.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: &AttentionConfig,
        sliding_window: Option<usize>,
    ) -> Result<Self> {
        let heads = config.heads();
        let output = format!("{name}.o_proj");
        let output = [Part { name: &output, outputs: hidden }];
        let norm = config.norm.map(|norm| QkNorm::load(weights, name, norm, heads)).transpose()?;
        let qkv = projections::load(weights, name, hidden, config)?;
        Ok(Self {
            qkv,
            output: Linear::load(weights, &output, heads.query * heads.size, config.biases.output)?,
            norm,
            norm_after_rope: config.norm.is_some_and(|norm| norm.after_rope),
            temperature: config.temperature.map(AttentionTemperature::new),
            output_gate: config.output_gate,
            core: Core::load(weights, name, config, sliding_window)?,
        })
    }

    /// `[T, hidden]` to the same shape. Each span sees its own state and nothing else.
    pub(super) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        rotary: Option<&Rotary>,
        states: &mut [&mut LayerState],
    ) -> Result<Array> {
        let rows = input.dim(0);
        let heads = self.core.heads;
        let (queries, keys, size) = (heads.query as i32, heads.key as i32, heads.size as i32);
        let all = queries + 2 * keys;
        let mut projected = self.qkv.forward(input)?;
        let mut gate = None;
        if self.output_gate {
            gate = Some(sigmoid(slice_axis(&projected, 1, 0, queries * size)?)?);
            projected = slice_axis(&projected, 1, queries * size, projected.dim(1))?;
        }
        if let Some(norm) = &self.norm {
            projected = norm.normalize_width(projected, heads)?;
        }
        let by_head = projected.reshape(&[rows, all, 1, size])?;
        // Queries and keys rotate together, in one call.
        let rotated = self.rotated(slice_axis(&by_head, 1, 0, queries + keys)?, rotary)?;
        let mut query = slice_axis(&rotated, 1, 0, queries)?;
        if let Some(temperature) = &self.temperature {
            query = temperature.forward(&query, &batch.positions().column()?)?;
        }
        let key = slice_axis(&rotated, 1, queries, queries + keys)?;
        let value = slice_axis(&by_head, 1, queries + keys, all)?;
        let added = concatenate(&[key, value], 1)?;
        let mut mixed = self.core.attend(&query, &added, batch, states)?.reshape(&[rows, queries * size])?;
        if let Some(gate) = gate {
            mixed = multiply(mixed, gate)?;
        }
        self.output.forward(&mixed)
    }

    /// Queries and keys, `[T, H, 1, D]`, normalized and rotated.
    fn rotated(&self, mut heads: Array, rotary: Option<&Rotary>) -> Result<Array> {
        let (before, after) =
            if self.norm_after_rope { (None, self.norm.as_ref()) } else { (self.norm.as_ref(), None) };
        if let Some(norm) = before {
            heads = norm.normalize_heads(heads)?;
        }
        if let Some(rotary) = rotary {
            heads = rotary.forward(&heads)?;
        }
        after.map_or(Ok(heads.clone()), |norm| norm.normalize_heads(heads))
    }
}
