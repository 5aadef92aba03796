//! A gated short convolution (LFM2): `y = C * conv(B * x)`, a state of the last few rows.

use mlx_rs::Array;
use mlx_rs::ops::{concatenate, multiply, split_equal};

use super::batch::Batch;
use super::causal_conv::CausalConv;
use super::linear::{Linear, Part};
use crate::array::slice_axis;
use crate::cache::LayerState;
use crate::error::Result;
use crate::weights::Weights;

/// The shape of a short convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortConvConfig {
    /// The rows that a row sees, itself included; at least 2.
    pub taps: usize,
    /// Whether the projections and the convolution have biases.
    pub bias: bool,
}

impl ShortConvConfig {
    pub(super) fn state_bytes(self, hidden: usize, size: usize) -> usize {
        (self.taps - 1) * hidden * size
    }
}

/// A short convolution with its weights.
pub(super) struct ShortConv {
    input: Linear,
    conv: CausalConv,
    output: Linear,
}

impl ShortConv {
    /// Takes `{name}.in_proj`, `conv` and `out_proj`, for a residual stream of width `hidden`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: ShortConvConfig,
    ) -> Result<Self> {
        let ShortConvConfig { taps, bias } = config;
        let [input, conv, output] = ["in_proj", "conv", "out_proj"].map(|part| format!("{name}.{part}"));
        Ok(Self {
            input: Linear::load(weights, &[Part { name: &input, outputs: 3 * hidden }], hidden, bias)?,
            conv: CausalConv::load(weights, &conv, hidden, taps, bias)?,
            output: Linear::load(weights, &[Part { name: &output, outputs: hidden }], hidden, bias)?,
        })
    }

    /// `[T, hidden]` to the same shape. Each span sees its own state and nothing else.
    pub(super) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        states: &mut [&mut LayerState],
    ) -> Result<Array> {
        let parts = split_equal(self.input.forward(input)?, 3, -1)?;
        let gated = multiply(&parts[0], &parts[2])?;
        let (mut mixed, mut start) = (Vec::with_capacity(batch.spans().len() + 1), 0);
        for span in batch.spans() {
            let end = start + span.len as i32;
            let state = states[span.state].as_recurrent()?;
            let (row, window) = self.conv.forward(&slice_axis(&gated, 0, start, end)?, state.conv_state())?;
            state.replace(window, None, span.len);
            mixed.push(row.as_dtype(gated.dtype())?);
            start = end;
        }
        if start < gated.dim(0) {
            mixed.push(slice_axis(&gated, 0, start, gated.dim(0))?);
        }
        self.output.forward(&multiply(&parts[1], concatenate(&mixed, 0)?)?)
    }
}
