//! The shape of a mixture of experts, as config.json gives it.

use crate::model::activation::Activation;

/// The function between an expert's projections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExpertActivation {
    /// `activation(gate) * up`.
    Gated(Activation),
    /// gpt-oss: `gate * sigmoid(alpha * gate) * (up + 1)`, the gate at most `limit` and `up` within it on both sides.
    Clamped {
        /// How steep the sigmoid is.
        alpha: f32,
        /// The largest value.
        limit: f32,
    },
}

/// The shape of a mixture of experts.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeConfig {
    /// The number of experts.
    pub num_experts: usize,
    /// The number of experts that a row goes through.
    pub num_experts_per_tok: usize,
    /// The width between the projections of an expert.
    pub intermediate_size: usize,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub norm_topk_prob: bool,
    /// Whether router and experts have biases.
    pub bias: bool,
    /// The function between the projections.
    pub activation: ExpertActivation,
    /// The name of the router among the tensors of the block.
    pub router: &'static str,
    /// The names of the experts' tensors.
    pub tensors: ExpertTensors,
}

/// The names of the experts' tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertTensors {
    /// One by one in `experts.{index}`, with these names of gate, up and down; or as mlx-lm writes them, all in one in `switch_mlp`.
    Each([&'static str; 3]),
    /// gpt-oss: all in `experts`, transposed, gate and up alternating; packed in blocks, as it was published; or as mlx-lm writes them,
    /// apart.
    Interleaved,
}
