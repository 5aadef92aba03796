//! The gated delta rule (Yang et al., 2024, arXiv:2412.06464) of Qwen 3.5 and Qwen 3 Next: a memory of constant size that decays, and that
//! each row corrects. Invariant: memory and decay are f32.

mod config;
pub(super) mod rule;

use mlx_rs::fast::rms_norm;
use mlx_rs::ops::{add, exp, logaddexp, multiply, negative, rsqrt, sigmoid, square, zeros_dtype};
use mlx_rs::{Array, Dtype};

use super::batch::Batch;
use super::causal_conv::CausalConv;
use super::fused_delta;
use super::linear::{Linear, Part};
use super::recurrence::{self, Recurrence};
use crate::array::slice_axis;
use crate::cache::{LayerState, RecurrentArrays};
use crate::error::Result;
use crate::weights::Weights;
pub use config::{GatedDeltaConfig, GatedDeltaProjections};
use rule::Rows;

/// The epsilon that is added to the squared length of queries and keys before the root.
const LENGTH_EPS: f32 = 1e-6;

/// A gated delta layer with its weights.
pub(super) struct GatedDelta {
    config: GatedDeltaConfig,
    /// The projection to queries, keys and values, then gates, then the inputs of corrections and decays.
    input: Linear,
    conv: CausalConv,
    /// `[Hv]` of f32, below 0: the fastest decay of each head.
    rate: Array,
    /// `[Hv]` of f32.
    dt_bias: Array,
    /// `[Dv]` of f32.
    norm: Array,
    eps: f32,
    /// True if a decode step uses MLX's fused update.
    is_fused: bool,
    output: Linear,
}

impl GatedDelta {
    /// Loads the tensors under `{name}.`, for a residual stream of width `hidden`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: GatedDeltaConfig,
        eps: f32,
    ) -> Result<Self> {
        let heads = config.num_value_heads;
        let output = format!("{name}.out_proj");
        let output = Part { name: &output, outputs: hidden };
        let rate =
            negative(exp(weights.take(&format!("{name}.A_log"), &[heads])?.as_dtype(Dtype::Float32)?)?)?;
        let dt_bias = weights.take(&format!("{name}.dt_bias"), &[heads])?.as_dtype(Dtype::Float32)?;
        let norm = weights.take(&format!("{name}.norm.weight"), &[config.value_head_dim])?;
        let conv = format!("{name}.conv1d");
        Ok(Self {
            config,
            input: config.load_input(weights, name, hidden)?,
            conv: CausalConv::load(weights, &conv, config.conv_width(), config.taps, false)?,
            rate,
            dt_bias,
            norm: norm.as_dtype(Dtype::Float32)?,
            eps,
            is_fused: fused_delta::is_usable(weights.backend(), &config),
            output: Linear::load_row_parallel(weights, output, config.value_width(), false)?,
        })
    }

    /// Maps `[T, hidden]` to the same shape. Each span sees only its own state.
    pub(super) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        states: &mut [&mut LayerState],
    ) -> Result<Array> {
        let heads = self.config.num_value_heads as i32;
        let (convolved, width) = (self.config.conv_width() as i32, self.config.value_width() as i32);
        let projected = self.input.forward(input)?;
        let part = |start, end| slice_axis(&projected, 1, start, end);
        let (qkv, gate) = (part(0, convolved)?, part(convolved, convolved + width)?);
        let single = |start| Ok::<_, crate::Error>(part(start, start + heads)?.as_dtype(Dtype::Float32)?);
        let correction = sigmoid(single(convolved + width)?)?;
        let step = add(single(convolved + width + heads)?, &self.dt_bias)?;
        let log_decay = multiply(logaddexp(step, Array::from_f32(0.0))?, &self.rate)?;
        let mixed = recurrence::run(self, &[qkv, log_decay, correction], batch, states)?;
        let normed = rms_norm(mixed, Some(&self.norm), self.eps)?;
        let gate = gate.as_dtype(Dtype::Float32)?;
        let gated = multiply(normed.reshape(gate.shape())?, multiply(&gate, sigmoid(&gate)?)?)?;
        self.output.forward(&gated.as_dtype(input.dtype())?)
    }
}

impl Recurrence for GatedDelta {
    fn empty(&self, inputs: &[Array]) -> Result<RecurrentArrays> {
        let GatedDeltaConfig { num_key_heads, num_value_heads, key_head_dim, value_head_dim, .. } =
            self.config;
        let shape = [1, num_key_heads, num_value_heads / num_key_heads, value_head_dim, key_head_dim];
        let memory = zeros_dtype(&shape.map(|size| size as i32), Dtype::Float32)?;
        Ok(RecurrentArrays { conv_state: self.conv.nothing(&inputs[0])?, ssm_state: Some(memory) })
    }

    /// Maps `[n, conv width]`, and log decays and corrections, `[n, Hv]`, to `[n, Hv, Dv]` of f32.
    fn step(&self, inputs: &[Array], before: &RecurrentArrays) -> Result<(Array, RecurrentArrays)> {
        let [qkv, log_decay, correction] = [0, 1, 2].map(|place| &inputs[place]);
        let config = &self.config;
        let count = qkv.dim(0);
        let (keys, size) = (config.num_key_heads as i32, config.key_head_dim as i32);
        let (group, value_size) =
            ((config.num_value_heads / config.num_key_heads) as i32, config.value_head_dim as i32);
        let (sums, window) = self.conv.forward(qkv, &before.conv_state)?;
        let active = multiply(&sums, sigmoid(&sums)?)?;
        let width = keys * size;
        let unit = |start| -> Result<Array> {
            let heads = slice_axis(&active, 1, start, start + width)?.reshape(&[count, keys, 1, size])?;
            let length = add(square(&heads)?.sum_axis(-1, true)?, Array::from_f32(LENGTH_EPS))?;
            Ok(multiply(&heads, rsqrt(length)?)?)
        };
        let scale = Array::from_f32((size as f32).sqrt().recip());
        let rows = Rows {
            query: multiply(unit(0)?, scale)?,
            key: unit(width)?,
            value: slice_axis(&active, 1, 2 * width, active.dim(1))?
                .reshape(&[count, keys, group, value_size])?,
            log_decay: log_decay.reshape(&[count, keys, group, 1])?,
            correction: correction.reshape(&[count, keys, group])?,
        };
        let fused = match &before.ssm_state {
            Some(memory) if self.is_fused && memory.dim(0) == count => fused_delta::step(&rows, memory)?,
            _ => None,
        };
        let (mixed, memory) = fused.map_or_else(|| rows.scan(before.ssm_state.as_ref()), Ok)?;
        Ok((
            mixed.reshape(&[count, keys * group, value_size])?,
            RecurrentArrays { conv_state: window, ssm_state: Some(memory) },
        ))
    }
}
