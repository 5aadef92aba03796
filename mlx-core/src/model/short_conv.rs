//! A gated short convolution (LFM2): `y = C * conv(B * x)`. Its state is the last few rows.

use mlx_rs::Array;
use mlx_rs::ops::{multiply, split_equal};

use super::batch::Batch;
use super::causal_conv::CausalConv;
use super::linear::{Linear, Part};
use super::recurrence::{self, Recurrence};
use crate::cache::{LayerState, RecurrentArrays};
use crate::error::Result;
use crate::weights::Weights;

/// The shape of a short convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortConvConfig {
    /// The number of channels: the width of the residual stream, or this machine's share of it.
    pub channels: usize,
    /// The number of rows that a row sees, itself included; at least 2.
    pub taps: usize,
    /// True if the projections and the convolution have biases.
    pub bias: bool,
}

impl ShortConvConfig {
    pub(super) fn state_bytes(self, size: usize) -> usize {
        (self.taps - 1) * self.channels * size
    }
}

/// A short convolution with its weights.
pub(super) struct ShortConv {
    input: Linear,
    conv: CausalConv,
    output: Linear,
}

impl ShortConv {
    /// Loads `{name}.in_proj`, `conv` and `out_proj`, for a residual stream of width `hidden`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: ShortConvConfig,
    ) -> Result<Self> {
        let ShortConvConfig { channels, taps, bias } = config;
        let [input, conv, output] = ["in_proj", "conv", "out_proj"].map(|part| format!("{name}.{part}"));
        Ok(Self {
            input: Linear::load(weights, &[Part { name: &input, outputs: 3 * channels }], hidden, bias)?,
            conv: CausalConv::load(weights, &conv, channels, taps, bias)?,
            output: Linear::load_row_parallel(
                weights,
                Part { name: &output, outputs: hidden },
                channels,
                bias,
            )?,
        })
    }

    /// Maps `[T, hidden]` to the same shape. Each span sees only its own state.
    pub(super) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        states: &mut [&mut LayerState],
    ) -> Result<Array> {
        let parts = split_equal(self.input.forward(input)?, 3, -1)?;
        let gated = multiply(&parts[0], &parts[2])?;
        let mixed = recurrence::run(self, &[gated], batch, states)?;
        self.output.forward(&multiply(&parts[1], mixed)?)
    }
}

impl Recurrence for ShortConv {
    fn empty(&self, inputs: &[Array]) -> Result<RecurrentArrays> {
        Ok(RecurrentArrays { conv_state: self.conv.nothing(&inputs[0])?, ssm_state: None })
    }

    fn step(&self, inputs: &[Array], before: &RecurrentArrays) -> Result<(Array, RecurrentArrays)> {
        let (rows, window) = self.conv.forward(&inputs[0], &before.conv_state)?;
        Ok((rows.as_dtype(inputs[0].dtype())?, RecurrentArrays { conv_state: window, ssm_state: None }))
    }
}
