//! Attention and Mamba-2 in parallel (Falcon-H1): both read the same rows, and their outputs are added.

use mlx_rs::Array;
use mlx_rs::ops::{add, multiply};

use super::attention::{Attention, AttentionConfig};
use super::batch::Batch;
use super::mamba2::{Mamba2, Mamba2Config};
use super::rope::Rotary;
use crate::array::scalar_like;
use crate::cache::LayerState;
use crate::error::Result;
use crate::weights::Weights;

/// The config of the Mamba-2 part, and factors of the inputs and outputs of both parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BesideMamba2Config {
    /// The Mamba-2 part.
    pub mamba: Mamba2Config,
    /// The factor of attention's input.
    pub attention_in_multiplier: f32,
    /// The factor of attention's output.
    pub attention_out_multiplier: f32,
    /// The factor of Mamba-2's input.
    pub ssm_in_multiplier: f32,
    /// The factor of Mamba-2's output.
    pub ssm_out_multiplier: f32,
}

/// Attention and Mamba-2 with their weights. The state of attention is the first one of the layer.
pub(super) struct AttentionBesideMamba2 {
    config: BesideMamba2Config,
    attention: Attention,
    mamba: Mamba2,
}

impl AttentionBesideMamba2 {
    /// Loads `{name}.self_attn` and `{name}.mamba`, for a residual stream of width `hidden`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        (attention, config): (&AttentionConfig, BesideMamba2Config),
        eps: f32,
    ) -> Result<Self> {
        let place = format!("{name}.self_attn");
        Ok(Self {
            config,
            attention: Attention::load(weights, &place, hidden, attention, None, false)?,
            mamba: Mamba2::load(weights, &format!("{name}.mamba"), hidden, config.mamba, eps)?,
        })
    }

    /// Maps `[T, hidden]` to the same shape.
    pub(super) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        rotary: Option<&Rotary>,
        states: [&mut [&mut LayerState]; 2],
    ) -> Result<Array> {
        let [of_attention, of_mamba] = states;
        let config = &self.config;
        let read = scaled(input, config.ssm_in_multiplier)?;
        let remembered = scaled(&self.mamba.forward(&read, batch, of_mamba)?, config.ssm_out_multiplier)?;
        let read = scaled(input, config.attention_in_multiplier)?;
        let attended = self.attention.forward(&read, batch, rotary, of_attention)?;
        Ok(add(remembered, scaled(&attended, config.attention_out_multiplier)?)?)
    }
}

fn scaled(rows: &Array, factor: f32) -> Result<Array> {
    match factor {
        1.0 => Ok(rows.clone()),
        factor => Ok(multiply(rows, scalar_like(factor, rows)?)?),
    }
}
