//! The feed-forward block, gated (Shazeer, 2020, arXiv:2002.05202) or not.

use mlx_rs::ops::{add, erfinv, maximum, multiply, split_equal, sqrt, square, subtract};
use mlx_rs::{Array, Dtype};

use super::activation::{Activated, Activation};
use super::linear::{Linear, Part};
use crate::array::{host, scalar_like};
use crate::error::Result;
use crate::weights::Weights;

/// The input projections of a feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedForwardInput {
    /// `gate_proj` and `up_proj`. The activated gate is multiplied by the output of `up_proj`.
    Gated,
    /// Gate and up, stacked in `gate_up_proj`.
    GatedInOne,
    /// Only `up_proj`, activated.
    Plain,
}

/// The shape of a feed-forward block.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedForwardConfig {
    /// The number of values between the projections.
    pub intermediate_size: usize,
    /// True if the projections have biases.
    pub bias: bool,
    /// The input projections.
    pub input: FeedForwardInput,
    /// The activation function between the projections.
    pub activation: Activation,
    /// The factors of the gate before activation, and of the block's output.
    pub multipliers: Option<[f32; 2]>,
    /// The share of the gates that are cut off before activation, if they are distributed normally (Gemma 3n). Only gates above the
    /// quantile of their row stay, less the quantile.
    pub activation_sparsity: Option<f32>,
}

/// `down(activation(gate(x)) * up(x))`, with gate and up in one product; or `down(activation(up(x)))`.
pub(crate) struct FeedForward {
    input: Linear,
    gated: bool,
    activation: Activated,
    down: Linear,
    multipliers: Option<[f32; 2]>,
    /// The number of standard deviations between the mean and the smallest gate that stays.
    cut: Option<f32>,
}

impl FeedForward {
    /// Loads `{name}.gate_proj`, `up_proj` and `down_proj`, for a residual stream of width `hidden`.
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: &FeedForwardConfig,
    ) -> Result<Self> {
        let FeedForwardConfig {
            intermediate_size,
            bias,
            input,
            activation,
            multipliers,
            activation_sparsity,
        } = *config;
        let [gate, up, both, down] =
            ["gate_proj", "up_proj", "gate_up_proj", "down_proj"].map(|part| format!("{name}.{part}"));
        let parts = match input {
            FeedForwardInput::Gated => {
                vec![
                    Part { name: &gate, outputs: intermediate_size },
                    Part { name: &up, outputs: intermediate_size },
                ]
            }
            FeedForwardInput::GatedInOne => vec![Part { name: &both, outputs: 2 * intermediate_size }],
            FeedForwardInput::Plain => vec![Part { name: &up, outputs: intermediate_size }],
        };
        Ok(Self {
            input: Linear::load(weights, &parts, hidden, bias)?,
            gated: input != FeedForwardInput::Plain,
            activation: Activated::load(weights, name, activation)?,
            down: Linear::load_row_parallel(
                weights,
                Part { name: &down, outputs: hidden },
                intermediate_size,
                bias,
            )?,
            multipliers,
            cut: activation_sparsity.map(quantile).transpose()?,
        })
    }

    /// Maps `[R, hidden]` to the same shape.
    pub(crate) fn forward(&self, input: &Array) -> Result<Array> {
        let wide = self.input.forward(input)?;
        if !self.gated {
            return self.down.forward(&self.activation.forward(&wide)?);
        }
        let both = split_equal(wide, 2, -1)?;
        let gate = match self.cut {
            Some(cut) => &sparse(&both[0], cut)?,
            None => &both[0],
        };
        let Some([of_gate, of_output]) = self.multipliers else {
            return self.down.forward(&multiply(self.activation.forward(gate)?, &both[1])?);
        };
        let gate = multiply(gate, scalar_like(of_gate, gate)?)?;
        let output = self.down.forward(&multiply(self.activation.forward(&gate)?, &both[1])?)?;
        Ok(multiply(&output, scalar_like(of_output, &output)?)?)
    }
}

/// Returns the number of standard deviations below which this share of a normal distribution lies.
fn quantile(share: f32) -> Result<f32> {
    let value = multiply(erfinv(Array::from_f32(2.0 * share - 1.0))?, Array::from_f32(2.0_f32.sqrt()))?;
    Ok(host::<f32>(&value)?.first().copied().unwrap_or(0.0))
}

/// Subtracts the mean of each row plus `cut` standard deviations from gates `[R, width]`, and sets negative differences to 0.
fn sparse(gates: &Array, cut: f32) -> Result<Array> {
    let wide = gates.as_dtype(Dtype::Float32)?;
    let mean = wide.mean_axis(-1, true)?;
    let deviation = sqrt(square(subtract(&wide, &mean)?)?.mean_axis(-1, true)?)?;
    let least = add(mean, multiply(deviation, Array::from_f32(cut))?)?;
    Ok(maximum(subtract(wide, least)?, Array::from_f32(0.0))?.as_dtype(gates.dtype())?)
}
