//! Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): one narrow latent per position replaces the keys and values of all heads.
//! Queries are projected into the space of latents, and the output of attention out of it, for both prefill and decode.

mod config;
mod per_head;

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::attention::{AttentionTemperature, Core, HeadGate, HeadGateConfig};
use super::batch::Batch;
use super::linear::{Linear, Part};
use super::norm::{Norm, NormConfig, NormKind};
use super::rope::Rotary;
use crate::array::slice_axis;
use crate::cache::LayerState;
use crate::error::Result;
use crate::weights::Weights;
pub use config::LatentConfig;
use per_head::PerHead;

/// The norms of latents, which have this epsilon regardless of the other norms.
const NORM: NormConfig = NormConfig { kind: NormKind::Rms, eps: 1e-6 };

/// Latent attention with its weights.
pub(super) struct LatentAttention {
    config: LatentConfig,
    /// The projection from the residual stream to the latent of queries, and its norm.
    query_latent: Option<(Linear, Norm)>,
    query: Linear,
    /// The projection to the latent of keys and values, and to the rotated part of keys.
    latent: Linear,
    norm: Norm,
    /// The projection of queries into the space of latents, `[H, nope, rank]`.
    embed: PerHead,
    /// The projection out of it, `[H, rank, value]`.
    unembed: PerHead,
    temperature: Option<AttentionTemperature>,
    gate: Option<HeadGate>,
    output: Linear,
    core: Core,
}

impl LatentAttention {
    /// Loads the tensors under `{name}.`, for a residual stream of width `hidden`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: LatentConfig,
    ) -> Result<Self> {
        let LatentConfig { num_heads, q_lora_rank, kv_lora_rank, bias, .. } = config;
        let linear = |weights: &mut Weights, part: &str, inputs: usize, outputs: usize, bias: bool| {
            Linear::load(weights, &[Part { name: &format!("{name}.{part}"), outputs }], inputs, bias)
        };
        let queries = num_heads * config.query_width();
        let (query_latent, query) = match q_lora_rank {
            None => (None, linear(weights, "q_proj", hidden, queries, false)?),
            Some(rank) => {
                let down = linear(weights, "q_a_proj", hidden, rank, bias)?;
                let norm = Norm::load(weights, &format!("{name}.q_a_layernorm"), rank, NORM)?;
                (Some((down, norm)), linear(weights, "q_b_proj", rank, queries, false)?)
            }
        };
        let latent = linear(weights, "kv_a_proj_with_mqa", hidden, config.latent_width(), bias)?;
        let gate = HeadGateConfig { per_head: true, softplus: false };
        let gate = config
            .head_gate
            .then(|| HeadGate::load(weights, name, hidden, (num_heads, config.v_head_dim), gate))
            .transpose()?;
        // Ling has another name for this projection.
        let output = if weights.has(&format!("{name}.dense.weight")) { "dense" } else { "o_proj" };
        let (embed, unembed) = per_head::load(weights, name, config)?;
        Ok(Self {
            config,
            query_latent,
            query,
            latent,
            norm: Norm::load(weights, &format!("{name}.kv_a_layernorm"), kv_lora_rank, NORM)?,
            embed,
            unembed,
            temperature: config.temperature.map(AttentionTemperature::new),
            gate,
            output: Linear::load_row_parallel(
                weights,
                Part { name: &format!("{name}.{output}"), outputs: hidden },
                num_heads * config.v_head_dim,
                bias,
            )?,
            core: Core::load(weights, name, &config.attention(), None)?,
        })
    }

    /// Maps `[T, hidden]` to the same shape. Each span sees only its own state.
    pub(super) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        rotary: Option<&Rotary>,
        states: &mut [&mut LayerState],
    ) -> Result<Array> {
        let (rows, heads) = (input.dim(0), self.config.num_heads as i32);
        let (rank, rotated) = (self.config.kv_lora_rank as i32, self.config.qk_rope_head_dim as i32);
        let nope = self.config.qk_nope_head_dim as i32;
        let mut query = self.queries(input)?.reshape(&[rows, heads, 1, nope + rotated])?;
        if let Some(temperature) = &self.temperature {
            query = temperature.forward(&query, &batch.positions().column()?)?;
        }
        let compressed = self.latent.forward(input)?;
        let latent = self.norm.forward(&slice_axis(&compressed, 1, 0, rank)?)?;
        let key = slice_axis(&compressed, 1, rank, rank + rotated)?.reshape(&[rows, 1, 1, rotated])?;
        // Queries and the key are rotated in one call.
        let mut turning = concatenate(&[slice_axis(&query, 3, nope, nope + rotated)?, key], 1)?;
        if let Some(rotary) = rotary {
            turning = rotary.forward(&turning)?;
        }
        let embedded = self.embed.forward(&slice_axis(&query, 3, 0, nope)?, batch.is_decode())?;
        let query = concatenate(&[embedded, slice_axis(&turning, 1, 0, heads)?], 3)?;
        let key = slice_axis(&turning, 1, heads, heads + 1)?;
        let added = concatenate(&[latent.reshape(&[rows, 1, 1, rank])?, key], 3)?;
        let mixed = self.core.attend(&query, Some(&[added]), batch, states)?;
        let values = self.unembed.forward(&mixed, batch.is_decode())?;
        let mut values = values.reshape(&[rows, -1])?;
        if let Some(gate) = &self.gate {
            values = gate.forward(input, &values, self.config.num_heads)?;
        }
        self.output.forward(&values)
    }

    /// Returns the queries, `[T, H (nope + rotated)]`.
    fn queries(&self, input: &Array) -> Result<Array> {
        match &self.query_latent {
            None => self.query.forward(input),
            Some((down, norm)) => self.query.forward(&norm.forward(&down.forward(input)?)?),
        }
    }
}
