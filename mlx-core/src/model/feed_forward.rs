//! The gated feed-forward block (Shazeer, 2020, arXiv:2002.05202).

use std::f32::consts::E;

use mlx_rs::Array;
use mlx_rs::ops::{add, divide, multiply, power, sigmoid, split_equal};

use super::linear::{Linear, Part};
use crate::array::on_gpu;
use crate::error::Result;
use crate::weights::Weights;

/// The shape of a feed-forward block.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedForwardConfig {
    /// The inner width.
    pub inner: usize,
    /// Whether the projections have biases.
    pub bias: bool,
}

/// `down(silu(gate(x)) * up(x))`, with gate and up as one product.
pub(crate) struct FeedForward {
    gate_up: Linear,
    down: Linear,
    /// Whether the device computes a sigmoid as fast as anything else.
    fused: bool,
}

impl FeedForward {
    /// Takes `{name}.gate_proj`, `up_proj` and `down_proj`, for a residual stream of width `hidden`.
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: &FeedForwardConfig,
    ) -> Result<Self> {
        let FeedForwardConfig { inner, bias } = *config;
        let (gate, up, down) =
            (format!("{name}.gate_proj"), format!("{name}.up_proj"), format!("{name}.down_proj"));
        let parts = [Part { name: &gate, outputs: inner }, Part { name: &up, outputs: inner }];
        Ok(Self {
            gate_up: Linear::load(weights, &parts, hidden, bias)?,
            down: Linear::load(weights, &[Part { name: &down, outputs: hidden }], inner, bias)?,
            fused: on_gpu()?,
        })
    }

    /// `[R, hidden]` to the same shape.
    pub(crate) fn forward(&self, input: &Array) -> Result<Array> {
        let both = split_equal(self.gate_up.forward(input)?, 2, -1)?;
        let (gate, up) = (&both[0], &both[1]);
        self.down.forward(&multiply(self.silu(gate)?, up)?)
    }

    /// `x * sigmoid(x)`.
    fn silu(&self, input: &Array) -> Result<Array> {
        if self.fused {
            return Ok(multiply(input, sigmoid(input)?)?);
        }
        // The CPU backend's own sigmoid takes twice as long as this. Far below zero the power is infinite and the quotient 0.
        let power = power(Array::from_f32(E.recip()), input)?;
        Ok(divide(input, add(power, Array::from_f32(1.0))?)?)
    }
}
