//! The config of a mixture of experts.

use crate::model::activation::Activation;
use crate::model::feed_forward::FeedForwardInput;
use crate::model::norm::NormConfig;

/// The function between the projections of an expert.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExpertActivation {
    /// `activation(gate) * up`.
    Gated(Activation),
    /// `activation(up)`: experts without gates, with the layout [`ExpertTensors::Plain`].
    Plain(Activation),
    /// gpt-oss: `gate * sigmoid(alpha * gate) * (up + 1)`, with `gate` at most `limit` and `up` between `-limit` and `limit`.
    Clamped {
        /// The steepness of the sigmoid.
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
    /// The number of values between the projections of an expert.
    pub intermediate_size: usize,
    /// The narrower space of the experts' inputs and outputs, if there is one.
    pub latent: Option<LatentExpertsConfig>,
    /// The choice and the weights of experts.
    pub routing: RoutingConfig,
    /// The expert that every row goes through.
    pub shared: Option<SharedExpertConfig>,
    /// True if the output is the mean of the shared expert and the chosen ones instead of their sum.
    pub averages_shared: bool,
    /// True if the layer's dense feed-forward block runs in parallel, and both have separate norms. The tensors of
    /// router and experts are then under the layer instead of the block.
    pub beside_dense: bool,
    /// True if router and experts have biases.
    pub bias: bool,
    /// The function between the projections.
    pub activation: ExpertActivation,
    /// The name of the router among the tensors of the block.
    pub router: &'static str,
    /// The names of the experts' tensors.
    pub tensors: ExpertTensors,
}

impl MoeConfig {
    /// Experts with llama's names and without biases. A softmax chooses them, and the weights of the chosen experts sum to 1.
    pub const fn gated(num_experts: usize, num_experts_per_tok: usize, intermediate_size: usize) -> Self {
        Self {
            num_experts,
            num_experts_per_tok,
            intermediate_size,
            latent: None,
            routing: RoutingConfig::softmax(true),
            shared: None,
            averages_shared: false,
            beside_dense: false,
            bias: false,
            activation: ExpertActivation::Gated(Activation::Silu),
            router: "gate",
            tensors: ExpertTensors::Each(["gate_proj", "up_proj", "down_proj"]),
        }
    }
}

/// A space between the residual stream and the experts: `fc1_latent_proj` projects into it, `fc2_latent_proj` out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentExpertsConfig {
    /// The width of the space.
    pub moe_latent_size: usize,
    /// True if the projections have biases.
    pub bias: bool,
}

/// The choice and the weights of the experts of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoutingConfig {
    /// The function from the router's logits to scores.
    pub scoring_func: ScoringFunc,
    /// A tensor that is added to the scores for the choice, but not to the weights.
    pub correction_bias: Option<CorrectionBias>,
    /// Groups of experts; some groups are chosen before the experts.
    pub groups: Option<ExpertGroups>,
    /// True if the weights of the chosen experts are divided by their sum.
    pub norm_topk_prob: bool,
    /// The factor of the weights.
    pub routed_scaling_factor: f32,
    /// The bound of the router's logits: `cap * tanh(logit / cap)`.
    pub logit_softcap: Option<f32>,
    /// Gemma 4: the router's input is normalized, multiplied by `router.scale`, and divided by the root of its width. The weights are
    /// multiplied by `router.per_expert_scale`.
    pub scaled: Option<NormConfig>,
}

impl RoutingConfig {
    /// A softmax over all experts. The weights of the chosen experts are divided by their sum if `norm_topk_prob` is set.
    pub const fn softmax(norm_topk_prob: bool) -> Self {
        Self {
            scoring_func: ScoringFunc::Softmax,
            correction_bias: None,
            groups: None,
            norm_topk_prob,
            routed_scaling_factor: 1.0,
            logit_softcap: None,
            scaled: None,
        }
    }
}

/// The function from a router's logits to scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScoringFunc {
    /// A softmax over all experts.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
    /// phimoe: two experts. Each is weighted by a softmax over the scores within a relative distance of `2 * jitter`.
    SparseMixer {
        /// `router_jitter_noise`.
        jitter: f32,
    },
}

/// The tensor of a correction bias, `[experts]` or `[1, experts]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CorrectionBias {
    /// Its name among the tensors of the block.
    pub name: &'static str,
    /// True if some checkpoints lack it.
    pub as_found: bool,
}

/// Groups of experts (DeepSeek-V3, arXiv:2412.19437). Experts are chosen only from the best groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// The number of groups.
    pub n_group: usize,
    /// The number of groups that experts are chosen from.
    pub topk_group: usize,
    /// The score of a group.
    pub score: GroupScore,
}

/// The score that ranks groups of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupScore {
    /// The sum of its two highest scores.
    BestTwo,
    /// Its highest score.
    Best,
}

/// An expert that every row goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpertConfig {
    /// Its name among the tensors of the block.
    pub name: &'static str,
    /// The number of values between its projections.
    pub intermediate_size: usize,
    /// The name of a projection to one number. The sigmoid of this number scales the expert's output.
    pub gate: Option<&'static str>,
    /// The input projections.
    pub input: FeedForwardInput,
    /// True if its projections have biases.
    pub bias: bool,
}

impl SharedExpertConfig {
    /// A shared expert with llama's names and without a gate on its output.
    pub const fn gated(name: &'static str, intermediate_size: usize) -> Self {
        Self { name, intermediate_size, gate: None, input: FeedForwardInput::Gated, bias: false }
    }
}

/// The names of the experts' tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertTensors {
    /// One tensor per expert in `experts.{index}`, with these names of gate, up and down; or mlx-lm's layout, stacked in `switch_mlp`.
    Each([&'static str; 3]),
    /// All experts in two tensors with these names, each `[experts, output, input]`, gate above up; or mlx-lm's layout, in `switch_mlp` or
    /// `experts.switch_glu`.
    InOne([&'static str; 2]),
    /// `up_proj` and `down_proj`, per expert in `experts.{index}`, or stacked in `experts`; or mlx-lm's layout, in `switch_mlp`.
    Plain,
    /// All experts in `experts`, transposed, gate before up; or mlx-lm's layout, in `switch_mlp`.
    Transposed,
    /// gpt-oss: all experts in `experts`, transposed, with alternating gate and up outputs. They are packed in blocks in the published files,
    /// and separate in mlx-lm's layout.
    Interleaved,
}
