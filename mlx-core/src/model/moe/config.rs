//! The shape of a mixture of experts, as config.json gives it.

use crate::model::activation::Activation;
use crate::model::feed_forward::FeedForwardInput;
use crate::model::norm::NormConfig;

/// The function between an expert's projections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExpertActivation {
    /// `activation(gate) * up`.
    Gated(Activation),
    /// `activation(up)`: experts without gates, whose layout is [`ExpertTensors::Plain`].
    Plain(Activation),
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
    /// The narrower space that experts read and write, if there is one.
    pub latent: Option<LatentExpertsConfig>,
    /// How experts are chosen and weighted.
    pub routing: RoutingConfig,
    /// The expert that every row goes through.
    pub shared: Option<SharedExpertConfig>,
    /// Whether the layer's dense feed-forward block runs beside them, each between norms of its own; router and experts then have their
    /// names in the layer.
    pub beside_dense: bool,
    /// Whether router and experts have biases.
    pub bias: bool,
    /// The function between the projections.
    pub activation: ExpertActivation,
    /// The name of the router among the tensors of the block.
    pub router: &'static str,
    /// The names of the experts' tensors.
    pub tensors: ExpertTensors,
}

impl MoeConfig {
    /// Experts with llama's names, without biases, chosen by a softmax and weighted by their share of the chosen scores.
    pub const fn gated(num_experts: usize, num_experts_per_tok: usize, intermediate_size: usize) -> Self {
        Self {
            num_experts,
            num_experts_per_tok,
            intermediate_size,
            latent: None,
            routing: RoutingConfig::softmax(true),
            shared: None,
            beside_dense: false,
            bias: false,
            activation: ExpertActivation::Gated(Activation::Silu),
            router: "gate",
            tensors: ExpertTensors::Each(["gate_proj", "up_proj", "down_proj"]),
        }
    }
}

/// A space between the residual stream and the experts, `fc1_latent_proj` into it and `fc2_latent_proj` out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentExpertsConfig {
    /// Its width.
    pub moe_latent_size: usize,
    /// Whether the projections have biases.
    pub bias: bool,
}

/// How the experts of a row are chosen and weighted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoutingConfig {
    /// What makes scores of the router's logits.
    pub scoring_func: ScoringFunc,
    /// A tensor that is added to the scores for the choice, not to the weights.
    pub correction_bias: Option<CorrectionBias>,
    /// Groups of experts of which some are chosen first.
    pub groups: Option<ExpertGroups>,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub norm_topk_prob: bool,
    /// A factor of the weights.
    pub routed_scaling_factor: f32,
    /// Gemma 4: the router reads its input after this norm, times `router.scale` and over the root of its width; weights are multiplied
    /// with `router.per_expert_scale`.
    pub scaled: Option<NormConfig>,
}

impl RoutingConfig {
    /// A softmax over all experts, whose chosen weights are divided by their sum if `norm_topk_prob` is set.
    pub const fn softmax(norm_topk_prob: bool) -> Self {
        Self {
            scoring_func: ScoringFunc::Softmax,
            correction_bias: None,
            groups: None,
            norm_topk_prob,
            routed_scaling_factor: 1.0,
            scaled: None,
        }
    }
}

/// What makes scores of a router's logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScoringFunc {
    /// A softmax over all experts.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
    /// phimoe: two experts, each weighted by a softmax over the scores that are within `2 * jitter` of it, relatively.
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
    /// Whether some checkpoints do without.
    pub as_found: bool,
}

/// Groups of experts (DeepSeek-V3, arXiv:2412.19437): experts are chosen from the best groups alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// The number of groups.
    pub n_group: usize,
    /// How many of them are chosen from.
    pub topk_group: usize,
    /// What ranks groups.
    pub score: GroupScore,
}

/// What ranks a group of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupScore {
    /// The sum of its two best scores.
    BestTwo,
    /// Its best score.
    Best,
}

/// An expert that every row goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpertConfig {
    /// Its name among the tensors of the block.
    pub name: &'static str,
    /// The width between its projections.
    pub intermediate_size: usize,
    /// The name of a projection to one number whose sigmoid scales its output.
    pub gate: Option<&'static str>,
    /// The projections that lead into it.
    pub input: FeedForwardInput,
    /// Whether its projections have biases.
    pub bias: bool,
}

impl SharedExpertConfig {
    /// One with llama's names, which is always open.
    pub const fn gated(name: &'static str, intermediate_size: usize) -> Self {
        Self { name, intermediate_size, gate: None, input: FeedForwardInput::Gated, bias: false }
    }
}

/// The names of the experts' tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertTensors {
    /// One by one in `experts.{index}`, with these names of gate, up and down; or as mlx-lm writes them, all in one in `switch_mlp`.
    Each([&'static str; 3]),
    /// All in two tensors with these names, each `[experts, output, input]`, gate above up; or as mlx-lm writes them, in `switch_mlp` or
    /// `experts.switch_glu`.
    InOne([&'static str; 2]),
    /// `up_proj` and `down_proj`, one by one in `experts.{index}`, or all in one in `experts`; or as mlx-lm writes them, in `switch_mlp`.
    Plain,
    /// All in `experts`, transposed, gate before up; or as mlx-lm writes them, in `switch_mlp`.
    Transposed,
    /// gpt-oss: all in `experts`, transposed, gate and up alternating; packed in blocks, as it was published; or as mlx-lm writes them,
    /// apart.
    Interleaved,
}
