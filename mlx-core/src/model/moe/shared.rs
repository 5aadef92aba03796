//! The shared expert, which every row goes through in addition to the chosen experts.

use mlx_rs::Array;
use mlx_rs::ops::{multiply, sigmoid};

use super::config::{ExpertActivation, MoeConfig, SharedExpertConfig};
use crate::error::Result;
use crate::model::activation::Activation;
use crate::model::feed_forward::{FeedForward, FeedForwardConfig};
use crate::model::linear::{Linear, Part};
use crate::weights::Weights;

/// A shared expert with its weights.
pub(super) struct SharedExpert {
    block: FeedForward,
    /// A projection to one output.
    gate: Option<Linear>,
}

impl SharedExpert {
    /// Loads its tensors under `{name}.`, for a residual stream of width `hidden`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        experts: &MoeConfig,
        config: SharedExpertConfig,
    ) -> Result<Self> {
        let activation = match experts.activation {
            ExpertActivation::Gated(activation) | ExpertActivation::Plain(activation) => activation,
            ExpertActivation::Clamped { .. } => Activation::Silu,
        };
        let SharedExpertConfig { intermediate_size, bias, input, .. } = config;
        let (multipliers, activation_sparsity) = (None, None);
        let block = FeedForwardConfig {
            intermediate_size,
            bias,
            input,
            activation,
            multipliers,
            activation_sparsity,
        };
        let gate = config.gate.map(|gate| format!("{name}.{gate}"));
        let gate = gate.map(|name| Linear::load(weights, &[Part { name: &name, outputs: 1 }], hidden, false));
        Ok(Self {
            block: FeedForward::load(weights, &format!("{name}.{}", config.name), hidden, &block)?,
            gate: gate.transpose()?,
        })
    }

    /// Maps `[R, hidden]` to the same shape.
    pub(super) fn forward(&self, input: &Array) -> Result<Array> {
        let output = self.block.forward(input)?;
        match &self.gate {
            Some(gate) => Ok(multiply(sigmoid(gate.forward(input)?)?, output)?),
            None => Ok(output),
        }
    }
}
