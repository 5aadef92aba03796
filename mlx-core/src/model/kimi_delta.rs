//! Kimi Delta Attention (Kimi Linear, arXiv:2510.26692): the gated delta rule with a decay for each dimension of keys. Invariant:
//! memory and decay are f32.

use mlx_rs::fast::rms_norm;
use mlx_rs::ops::{add, exp, logaddexp, multiply, negative, rsqrt, sigmoid, square, zeros_dtype};
use mlx_rs::{Array, Dtype};

use super::batch::Batch;
use super::causal_conv::CausalConv;
use super::gated_delta::rule::{Rows, SMALL};
use super::linear::{Linear, Part};
use super::recurrence::{self, Recurrence};
use crate::array::slice_axis;
use crate::cache::{LayerState, RecurrentArrays};
use crate::error::{Error, Result};
use crate::weights::Weights;

/// The epsilon that is added to the squared length of queries and keys before the root.
const LENGTH_EPS: f32 = 1e-6;

/// The shape of a layer of Kimi Delta Attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KimiDeltaConfig {
    /// The number of heads, each with a memory.
    pub num_heads: usize,
    /// The dimensions of a query, a key and a value, and the inner width of the projections to gates and decays.
    pub head_dim: usize,
    /// The number of rows that the convolution sees, the newest included; at least 2.
    pub short_conv_kernel_size: usize,
    /// True if gates and decays are projected through `head_dim` numbers instead of directly.
    pub low_rank: bool,
    /// The lower bound of log decays; `None` if they are not bounded.
    pub lower_bound: Option<f32>,
}

impl KimiDeltaConfig {
    /// The width of queries, of keys and of values.
    fn width(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// The width of the first projections to decays and gates.
    fn inner(&self) -> usize {
        if self.low_rank { self.head_dim } else { self.width() }
    }

    /// Returns the bytes of the state of a layer, with activations of `size` bytes.
    pub(super) fn state_bytes(&self, size: usize) -> usize {
        (self.short_conv_kernel_size - 1) * 3 * self.width() * size + 4 * self.width() * self.head_dim
    }

    /// Returns the temporary bytes of a prompt row in the layer: copies of the convolution's input, and the row's products with other rows
    /// of its block in each dimension.
    pub(super) fn bytes_per_row(&self) -> usize {
        4 * (30 * self.width() + 5 * self.width() * SMALL as usize)
    }
}

/// A layer of Kimi Delta Attention with its weights.
pub(super) struct KimiDelta {
    config: KimiDeltaConfig,
    /// The projection to queries, keys, values, corrections, and the inputs of decays and gates.
    input: Linear,
    /// The second projections of decays and gates, if they are of low rank.
    low_rank: Option<[Linear; 2]>,
    conv: CausalConv,
    /// `[H, 1]` of f32, above 0: the fastest decay of each head, or the steepness of bounded decays.
    rate: Array,
    /// `[H, D]` of f32.
    dt_bias: Array,
    /// `[D]` of f32.
    norm: Array,
    eps: f32,
    output: Linear,
}

impl KimiDelta {
    /// Loads the tensors under `{name}.`, for a residual stream of width `hidden`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: KimiDeltaConfig,
        eps: f32,
    ) -> Result<Self> {
        let KimiDeltaConfig { num_heads, head_dim, short_conv_kernel_size, low_rank, .. } = config;
        let width = config.width();
        let (of_decay, of_gate) = if low_rank { ("f_a", "g_a") } else { ("f", "g") };
        let names = ["q", "k", "v", "b", of_decay, of_gate].map(|part| format!("{name}.{part}_proj"));
        let inner = config.inner();
        let widths = [width, width, width, num_heads, inner, inner];
        let parts: Vec<Part> =
            names.iter().zip(widths).map(|(name, outputs)| Part { name, outputs }).collect();
        let [decay, gate, output] = ["f_b", "g_b", "o"].map(|part| format!("{name}.{part}_proj"));
        let linear = |weights: &mut Weights, name: &str, inputs: usize, outputs: usize| {
            Linear::load(weights, &[Part { name, outputs }], inputs, false)
        };
        // mlx-lm uses other names for the convolutions.
        let ours = weights.has(&format!("{name}.q_conv1d.weight"));
        let convs = ["q", "k", "v"].map(|part| {
            if ours { format!("{name}.{part}_conv1d") } else { format!("{name}.{part}_conv.conv") }
        });
        let rate = flat(weights, &format!("{name}.A_log"), num_heads)?.reshape(&[num_heads as i32, 1])?;
        let dt_bias = flat(weights, &format!("{name}.dt_bias"), width)?;
        let norm = weights.take(&format!("{name}.o_norm.weight"), &[head_dim])?;
        Ok(Self {
            input: Linear::load(weights, &parts, hidden, false)?,
            low_rank: low_rank
                .then(|| {
                    let decay = linear(weights, &decay, head_dim, width)?;
                    Ok::<_, Error>([decay, linear(weights, &gate, head_dim, width)?])
                })
                .transpose()?,
            conv: CausalConv::load_parts(
                weights,
                &convs.each_ref().map(String::as_str),
                width,
                short_conv_kernel_size,
            )?,
            rate: exp(rate)?,
            dt_bias: dt_bias.reshape(&[num_heads as i32, head_dim as i32])?,
            norm: norm.as_dtype(Dtype::Float32)?,
            eps,
            output: Linear::load_row_parallel(
                weights,
                Part { name: &output, outputs: hidden },
                width,
                false,
            )?,
            config,
        })
    }

    /// Maps `[T, hidden]` to the same shape. Each span sees only its own state.
    pub(super) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        states: &mut [&mut LayerState],
    ) -> Result<Array> {
        let (heads, size) = (self.config.num_heads as i32, self.config.head_dim as i32);
        let width = heads * size;
        let projected = self.input.forward(input)?;
        let part = |start, end| slice_axis(&projected, 1, start, end);
        let correction = sigmoid(part(3 * width, 3 * width + heads)?.as_dtype(Dtype::Float32)?)?;
        let (first, inner) = (3 * width + heads, self.config.inner() as i32);
        let by_head = |array: Array| -> Result<Array> {
            Ok(array.as_dtype(Dtype::Float32)?.reshape(&[input.dim(0), heads, size])?)
        };
        let (mut decay, mut gate) = (part(first, first + inner)?, part(first + inner, first + 2 * inner)?);
        if let Some([of_decay, of_gate]) = &self.low_rank {
            (decay, gate) = (of_decay.forward(&decay)?, of_gate.forward(&gate)?);
        }
        let log_decay = self.log_decay(&add(by_head(decay)?, &self.dt_bias)?)?;
        let gate = by_head(gate)?;
        let qkv = part(0, 3 * width)?;
        let mixed = recurrence::run(self, &[qkv, log_decay, correction], batch, states)?;
        let normed = rms_norm(mixed, Some(&self.norm), self.eps)?;
        let gated = multiply(normed, sigmoid(gate)?)?.reshape(&[-1, width])?;
        self.output.forward(&gated.as_dtype(input.dtype())?)
    }
}

impl KimiDelta {
    /// Maps steps `[T, H, D]` to logarithms of decays.
    fn log_decay(&self, step: &Array) -> Result<Array> {
        Ok(match self.config.lower_bound {
            Some(bound) => multiply(sigmoid(multiply(step, &self.rate)?)?, Array::from_f32(bound))?,
            // ln(1 + e^x)
            None => multiply(logaddexp(step, Array::from_f32(0.0))?, negative(&self.rate)?)?,
        })
    }
}

impl Recurrence for KimiDelta {
    fn empty(&self, inputs: &[Array]) -> Result<RecurrentArrays> {
        let (heads, size) = (self.config.num_heads as i32, self.config.head_dim as i32);
        let memory = zeros_dtype(&[1, heads, 1, size, size], Dtype::Float32)?;
        Ok(RecurrentArrays { conv_state: self.conv.nothing(&inputs[0])?, ssm_state: Some(memory) })
    }

    /// Maps `[n, 3 H D]`, log decays, `[n, H, D]`, and corrections, `[n, H]`, to `[n, H, D]` of f32.
    fn step(&self, inputs: &[Array], before: &RecurrentArrays) -> Result<(Array, RecurrentArrays)> {
        let [qkv, log_decay, correction] = [0, 1, 2].map(|place| &inputs[place]);
        let (heads, size, count) = (self.config.num_heads as i32, self.config.head_dim as i32, qkv.dim(0));
        let (sums, window) = self.conv.forward(qkv, &before.conv_state)?;
        let active = multiply(&sums, sigmoid(&sums)?)?;
        let by_head = |place: i32| -> Result<Array> {
            let rows = slice_axis(&active, 1, place * heads * size, (place + 1) * heads * size)?;
            Ok(rows.reshape(&[count, heads, 1, size])?)
        };
        let unit = |place: i32| -> Result<Array> {
            let rows = by_head(place)?;
            let length = add(square(&rows)?.sum_axis(-1, true)?, Array::from_f32(LENGTH_EPS))?;
            Ok(multiply(&rows, rsqrt(length)?)?)
        };
        let scale = Array::from_f32((size as f32).sqrt().recip());
        let rows = Rows {
            query: multiply(unit(0)?, scale)?,
            key: unit(1)?,
            value: by_head(2)?,
            log_decay: log_decay.reshape(&[count, heads, 1, size])?,
            correction: correction.reshape(&[count, heads, 1])?,
        };
        let (mixed, memory) = rows.scan(before.ssm_state.as_ref())?;
        Ok((
            mixed.reshape(&[count, heads, size])?,
            RecurrentArrays { conv_state: window, ssm_state: Some(memory) },
        ))
    }
}

/// Loads a tensor of `count` numbers in f32. Checkpoints write it with axes of 1 or in rows.
fn flat(weights: &mut Weights, name: &str, count: usize) -> Result<Array> {
    let shape = weights.shape(name).filter(|shape| shape.iter().product::<usize>() == count);
    let shape = shape.map_or(vec![count], <[usize]>::to_vec);
    Ok(weights.take(name, &shape)?.as_dtype(Dtype::Float32)?.reshape(&[count as i32])?)
}
