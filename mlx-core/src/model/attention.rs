//! Grouped-query attention over the states of sequences (Ainslie et al., 2023, arXiv:2305.13245).

mod batched;
pub(super) mod body;
mod config;
mod core;
mod head_gate;
mod heads;
mod masks;
mod packed;
mod per_span;
mod projections;
mod qk_norm;
mod temperature;
mod two_way;
mod weights;

use mlx_rs::Array;
use mlx_rs::ops::{clip, multiply, sigmoid};

use super::batch::Batch;
use super::linear::{Linear, Part};
use super::norm::NormConfig;
use super::rope::Rotary;
use crate::array::{scalar_like, slice_axis, split_axis};
use crate::cache::LayerState;
use crate::error::Result;
use crate::weights::Weights;
pub use config::{AttentionBiases, AttentionConfig, OutputGate, Projections};
pub(super) use core::Core;
pub(super) use head_gate::HeadGate;
pub use head_gate::HeadGateConfig;
pub(super) use masks::Masks;
use qk_norm::QkNorm;
pub use qk_norm::{QkNormConfig, QkNormScope};
pub(super) use temperature::AttentionTemperature;
pub use temperature::AttentionTemperatureConfig;
pub(super) use two_way::TextShape;

/// Queries, keys and values as one product, norms, rope, attention, output projection.
pub(super) struct Attention {
    qkv: Linear,
    output: Linear,
    norm: Option<QkNorm>,
    norm_after_rope: bool,
    temperature: Option<AttentionTemperature>,
    output_gate: bool,
    head_gate: Option<HeadGate>,
    clip_qkv: Option<f32>,
    values: Values,
    value_norm: Option<NormConfig>,
    core: Core,
}

/// The source of a layer's values.
#[derive(PartialEq)]
enum Values {
    /// A separate projection.
    Projected,
    /// The projected keys.
    Keys,
    /// Another layer. This layer attends to its keys and values.
    Borrowed,
}

/// The projections of rows by head, `[T, heads, 1, D]`.
struct Projected {
    query: Array,
    /// Keys and values. `None` if another layer has them.
    added: Option<[Array; 2]>,
    /// The factors of the output, `[T, heads * D]`.
    gate: Option<Array>,
}

impl Attention {
    /// Takes the projections under `{name}.`, for a residual stream of width `hidden`. A row attends to `sliding_window` positions, including
    /// itself, or to all. A layer that `borrows` projects no keys and values.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: &AttentionConfig,
        sliding_window: Option<usize>,
        borrows: bool,
    ) -> Result<Self> {
        let heads = config.heads();
        let output = format!("{name}.o_proj");
        let output = Part { name: &output, outputs: hidden };
        let width = heads.query * heads.size;
        let norm = config.norm.map(|norm| QkNorm::load(weights, name, norm, heads, borrows)).transpose()?;
        let qkv = projections::load(weights, name, hidden, config, borrows)?;
        let head_gate = match config.output_gate {
            Some(OutputGate::Heads(gate)) => {
                Some(HeadGate::load(weights, name, hidden, (heads.query, heads.size), gate)?)
            }
            _ => None,
        };
        Ok(Self {
            qkv,
            output: Linear::load_row_parallel(weights, output, width, config.biases.output)?,
            norm,
            norm_after_rope: config.norm.is_some_and(|norm| norm.after_rope),
            temperature: config.temperature.map(AttentionTemperature::new),
            output_gate: config.output_gate.is_some() && head_gate.is_none(),
            head_gate,
            clip_qkv: config.clip_qkv,
            values: match (borrows, config.attention_k_eq_v) {
                (true, _) => Values::Borrowed,
                (false, true) => Values::Keys,
                (false, false) => Values::Projected,
            },
            value_norm: config.value_norm,
            core: Core::load(weights, name, config, sliding_window)?,
        })
    }

    /// Maps `[T, hidden]` to the same shape. Each span attends only to its own state, or to the state that it borrows.
    pub(super) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        rotary: Option<&Rotary>,
        states: &mut [&mut LayerState],
    ) -> Result<Array> {
        let rows = input.dim(0);
        let heads = self.core.heads;
        let Projected { mut query, added, gate } = self.project(input, rotary)?;
        if let Some(temperature) = &self.temperature {
            query = temperature.forward(&query, &batch.positions().column()?)?;
        }
        let mixed = self.core.attend(&query, added.as_ref().map(<[Array; 2]>::as_slice), batch, states)?;
        let mut mixed = mixed.reshape(&[rows, (heads.query * heads.size) as i32])?;
        if let Some(gate) = gate {
            mixed = multiply(mixed, gate)?;
        }
        if let Some(gate) = &self.head_gate {
            mixed = gate.forward(input, &mixed, heads.query)?;
        }
        self.output.forward(&mixed)
    }

    /// Projects rows, and splits, normalizes and rotates their heads.
    fn project(&self, input: &Array, rotary: Option<&Rotary>) -> Result<Projected> {
        let rows = input.dim(0);
        let heads = self.core.heads;
        let (queries, size) = (heads.query as i32, heads.size as i32);
        let keys = heads.key as i32;
        let mut projected = self.qkv.forward(input)?;
        let mut gate = None;
        if self.output_gate {
            gate = Some(sigmoid(slice_axis(&projected, 1, 0, queries * size)?)?);
            projected = slice_axis(&projected, 1, queries * size, projected.dim(1))?;
        }
        if let Some(most) = self.clip_qkv {
            let (low, high) = (scalar_like(-most, &projected)?, scalar_like(most, &projected)?);
            projected = clip(&projected, (&low, &high))?;
        }
        if let Some(norm) = &self.norm {
            projected = norm.normalize_width(projected, heads)?;
        }
        let by_head = projected.reshape(&[rows, -1, 1, size])?;
        let (rotating, value) = match self.values {
            Values::Projected => {
                let (rotating, value) = split_axis(&by_head, 1, queries + keys)?;
                (rotating, Some(value))
            }
            Values::Keys => (by_head.clone(), Some(slice_axis(&by_head, 1, queries, queries + keys)?)),
            Values::Borrowed => (by_head, None),
        };
        // One call rotates queries and keys.
        let rotated = self.rotated(rotating, rotary)?;
        let (query, added) = match value {
            Some(value) => {
                let (query, key) = split_axis(&rotated, 1, queries)?;
                (query, Some(self.added(key, value)?))
            }
            None => (rotated, None),
        };
        Ok(Projected { query, added, gate })
    }

    /// Returns keys and values of the rows, `[T, Hk, 1, D]` each.
    fn added(&self, key: Array, mut value: Array) -> Result<[Array; 2]> {
        if let Some(norm) = self.value_norm {
            value = norm.plain(&value)?;
        }
        Ok([key, value])
    }

    /// Normalizes and rotates queries and keys, `[T, H, 1, D]`.
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
