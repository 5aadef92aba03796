//! Mamba-2 (Dao and Gu, 2024, arXiv:2405.21060): each head has a memory of constant size, which decays at a rate that depends on the row.
//! Invariant: memory and decay are f32.

mod config;
mod scan;
mod shared_norm;

use mlx_rs::ops::{add, clip, exp, logaddexp, multiply, negative, sigmoid, zeros_dtype};
use mlx_rs::{Array, Dtype};

use super::activation::Activated;
use super::batch::Batch;
use super::causal_conv::CausalConv;
use super::linear::{Linear, Part};
use super::norm::{NormConfig, NormKind};
use super::recurrence::{self, Recurrence};
use crate::array::slice_axis;
use crate::cache::{LayerState, RecurrentArrays};
use crate::error::Result;
use crate::weights::Weights;
pub use config::{GatedNorm, Mamba2Config};
use scan::Rows;
use shared_norm::SharedNorm;

/// The name suffixes of tensors that are f32 regardless of the type of the others.
pub(super) const F32_SUFFIXES: [&str; 3] = [".A_log", ".dt_bias", ".D"];

/// A Mamba-2 layer with its weights.
pub(super) struct Mamba2 {
    config: Mamba2Config,
    /// The projection to gates, inputs, `B`, `C` and time steps.
    input: Linear,
    /// `[width of the projection]`: factors of the projection's outputs.
    multipliers: Option<Array>,
    conv: CausalConv,
    activation: Activated,
    /// `[H]` of f32, below 0: the rate of decay.
    rate: Array,
    /// `[H]` of f32.
    dt_bias: Array,
    /// `[H, 1]` of f32: the factor of the input that is added to the output.
    skip: Array,
    norm: Option<(Array, NormConfig)>,
    /// The machines that have other heads of this machine's group, which has one norm.
    shared_norm: Option<SharedNorm>,
    output: Linear,
}

impl Mamba2 {
    /// Loads the tensors under `{name}.`, for a residual stream of width `hidden`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: Mamba2Config,
        eps: f32,
    ) -> Result<Self> {
        let (heads, inner) = (config.num_heads, config.intermediate_size());
        let [input, output, conv, norm] =
            ["in_proj", "out_proj", "conv1d", "norm.weight"].map(|part| format!("{name}.{part}"));
        let found = [&input, &output].map(|part| weights.has_bias(part));
        let [into, out] = config.biases.unwrap_or(found);
        let wide = |weights: &mut Weights, part: &str| -> Result<Array> {
            Ok(weights.take(&format!("{name}.{part}"), &[heads])?.as_dtype(Dtype::Float32)?)
        };
        let rate = negative(exp(wide(weights, "A_log")?)?)?;
        let dt_bias = wide(weights, "dt_bias")?;
        let skip = wide(weights, "D")?.reshape(&[heads as i32, 1])?;
        let norm = (config.norm != GatedNorm::None).then(|| weights.take(&norm, &[inner]));
        let norm = norm.transpose()?.map(|weight| (weight, NormConfig { kind: NormKind::Rms, eps }));
        let outputs = config.widths().into_iter().sum();
        Ok(Self {
            input: Linear::load(weights, &[Part { name: &input, outputs }], hidden, into)?,
            multipliers: config.multipliers.map(|factors| multipliers(&config, factors)),
            conv: CausalConv::load(
                weights,
                &conv,
                config.conv_width(),
                config.conv_kernel,
                config.conv_bias,
            )?,
            activation: Activated::load(weights, name, config.activation)?,
            shared_norm: SharedNorm::of(weights, &config),
            output: Linear::load_row_parallel(weights, Part { name: &output, outputs: hidden }, inner, out)?,
            config,
            rate,
            dt_bias,
            skip,
            norm,
        })
    }

    /// Maps `[T, hidden]` to the same shape. Each span sees only its own state.
    pub(super) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        states: &mut [&mut LayerState],
    ) -> Result<Array> {
        let (inner, convolved) = (self.config.intermediate_size() as i32, self.config.conv_width() as i32);
        let mut projected = self.input.forward(input)?;
        if let Some(factors) = &self.multipliers {
            projected = multiply(&projected, factors.as_dtype(projected.dtype())?)?;
        }
        let part = |start, end| slice_axis(&projected, 1, start, end);
        let (gate, rows) = (part(0, inner)?, part(inner, inner + convolved)?);
        let step = self.time_step(&part(inner + convolved, projected.dim(1))?)?;
        let mixed = recurrence::run(self, &[rows, step], batch, states)?;
        let gated = self.gated(&mixed, &gate)?;
        self.output.forward(&gated.as_dtype(input.dtype())?)
    }

    /// Returns time steps `[T, H]` of f32 from their projection, which has the same shape.
    fn time_step(&self, projected: &Array) -> Result<Array> {
        let raw = add(projected.as_dtype(Dtype::Float32)?, &self.dt_bias)?;
        // ln(1 + e^x)
        let step = logaddexp(raw, Array::from_f32(0.0))?;
        let [least, most] = self.config.time_step_limit.map(Array::from_f32);
        Ok(clip(step, (&least, &most))?)
    }

    /// Applies gate and norm to `[T, H P]` of f32, in the order of the family.
    fn gated(&self, mixed: &Array, gate: &Array) -> Result<Array> {
        let gate = gate.as_dtype(Dtype::Float32)?;
        let open = multiply(&gate, sigmoid(&gate)?)?;
        match self.config.norm {
            GatedNorm::AfterGate => self.normalized(&multiply(mixed, open)?),
            GatedNorm::BeforeGate => Ok(multiply(self.normalized(mixed)?, open)?),
            GatedNorm::None => Ok(multiply(mixed, open)?),
        }
    }

    /// Normalizes each group of `[T, H P]` separately.
    fn normalized(&self, mixed: &Array) -> Result<Array> {
        let Some((weight, norm)) = &self.norm else { return Ok(mixed.clone()) };
        let by_group = mixed.reshape(&[mixed.dim(0), self.config.n_groups as i32, -1])?;
        let normed = match &self.shared_norm {
            Some(shared) => shared.forward(mixed, norm.eps)?,
            None => norm.plain(&by_group)?.reshape(mixed.shape())?,
        };
        Ok(multiply(normed, weight.as_dtype(Dtype::Float32)?)?)
    }
}

impl Recurrence for Mamba2 {
    fn empty(&self, inputs: &[Array]) -> Result<RecurrentArrays> {
        let Mamba2Config { n_groups, num_heads, head_dim, state_size, .. } = self.config;
        let shape = [1, n_groups, num_heads / n_groups, head_dim, state_size].map(|size| size as i32);
        let memory = zeros_dtype(&shape, Dtype::Float32)?;
        Ok(RecurrentArrays { conv_state: self.conv.nothing(&inputs[0])?, ssm_state: Some(memory) })
    }

    /// Maps `[n, conv width]`, and time steps, `[n, H]`, to `[n, H P]` of f32.
    fn step(&self, inputs: &[Array], before: &RecurrentArrays) -> Result<(Array, RecurrentArrays)> {
        let (rows, step) = (&inputs[0], &inputs[1]);
        let config = &self.config;
        let (count, groups) = (rows.dim(0), config.n_groups as i32);
        let (inner, heads, size) =
            (config.intermediate_size() as i32, config.num_heads as i32, config.head_dim as i32);
        let width = groups * config.state_size as i32;
        let (sums, window) = self.conv.forward(rows, &before.conv_state)?;
        let active = self.activation.forward(&sums)?;
        let shared = |start: i32| -> Result<Array> {
            Ok(slice_axis(&active, 1, start, start + width)?.reshape(&[count, groups, 1, -1])?)
        };
        let by_group = |array: Array| array.reshape(&[count, groups, heads / groups, -1]);
        let input = slice_axis(&active, 1, 0, inner)?.reshape(&[count, heads, size])?;
        let by_head = step.reshape(&[count, heads, 1])?;
        let rows = Rows {
            input: by_group(multiply(&input, &by_head)?)?,
            write: shared(inner)?,
            read: shared(inner + width)?,
            log_decay: by_group(multiply(step, &self.rate)?)?,
        };
        let (output, memory) = rows.scan(before.ssm_state.as_ref())?;
        let output = add(output.reshape(&[count, heads, size])?, multiply(input, &self.skip)?)?;
        Ok((
            output.reshape(&[count, inner])?,
            RecurrentArrays { conv_state: window, ssm_state: Some(memory) },
        ))
    }
}

/// Returns the factors of the projection, one for each output.
fn multipliers(config: &Mamba2Config, factors: [f32; 5]) -> Array {
    let parts = config.widths().into_iter().zip(factors);
    let all: Vec<f32> = parts.flat_map(|(width, factor)| std::iter::repeat_n(factor, width)).collect();
    Array::from_slice(&all, &[all.len() as i32])
}
