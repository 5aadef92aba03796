//! A mixture of experts (Shazeer et al., 2017, arXiv:1701.06538). A router chooses a few feed-forward blocks for each row. Invariant: the
//! products of a row involve only that row, so its bits do not depend on the choices of other rows.

mod config;
mod expert_stack;
mod expert_weights;
mod router;
mod shared;

use mlx_rs::Array;
use mlx_rs::ops::{
    add, argsort_axis, clip, expand_dims_axes, floor_divide, matmul, multiply, sigmoid, split_equal,
};

use super::activation::Activated;
use super::linear::{Linear, Part};
use crate::array::scalar_like;
use crate::error::Result;
use crate::weights::{Shard, Weights};
pub use config::{
    CorrectionBias, ExpertActivation, ExpertGroups, ExpertTensors, GroupScore, LatentExpertsConfig,
    MoeConfig, RoutingConfig, ScoringFunc, SharedExpertConfig,
};
use expert_weights::ExpertLinear;
pub(super) use expert_weights::expect_type_of_floats;
use router::Router;
use shared::SharedExpert;

/// The minimum number of products for which rows are sorted by expert.
const WORTH_SORTING: usize = 64;

/// The router and all experts of a layer.
pub(crate) struct Experts {
    router: Router,
    gate_up: ExpertLinear,
    down: ExpertLinear,
    activation: ExpertActivationFn,
    num_experts_per_tok: i32,
    /// The projections to the width of the experts and back.
    latent: Option<[Linear; 2]>,
    shared: Option<SharedExpert>,
    averages_shared: bool,
    /// The machines that have the other shards of all experts.
    shard: Option<Shard>,
}

enum ExpertActivationFn {
    Gated(Activated),
    Plain(Activated),
    Clamped { alpha: f32, limit: f32 },
}

impl Experts {
    /// Loads the router and the experts under `{name}.`, for a residual stream of width `hidden`.
    pub(crate) fn load(weights: &mut Weights, name: &str, hidden: usize, config: &MoeConfig) -> Result<Self> {
        let shared = config.shared.map(|shared| SharedExpert::load(weights, name, hidden, config, shared));
        let width = config.latent.map_or(hidden, |latent| latent.moe_latent_size);
        let (gate_up, down) = config.tensors.load(weights, name, width, config)?;
        let mut projection = |part: &str, inputs: usize, outputs: usize, bias: bool| {
            let part = format!("{name}.{part}");
            Linear::load(weights, &[Part { name: &part, outputs }], inputs, bias)
        };
        let latent = match config.latent {
            None => None,
            Some(latent) => Some([
                projection("fc1_latent_proj", hidden, width, latent.bias)?,
                projection("fc2_latent_proj", width, hidden, latent.bias)?,
            ]),
        };
        Ok(Self {
            latent,
            router: Router::load(weights, name, hidden, config)?,
            gate_up,
            down,
            activation: match config.activation {
                ExpertActivation::Gated(activation) => {
                    ExpertActivationFn::Gated(Activated::load(weights, name, activation)?)
                }
                ExpertActivation::Plain(activation) => {
                    ExpertActivationFn::Plain(Activated::load(weights, name, activation)?)
                }
                ExpertActivation::Clamped { alpha, limit } => ExpertActivationFn::Clamped { alpha, limit },
            },
            num_experts_per_tok: config.num_experts_per_tok as i32,
            shared: shared.transpose()?,
            averages_shared: config.averages_shared,
            shard: weights.shard().cloned(),
        })
    }

    /// Maps `[T, hidden]` to the same shape. With `may_sort`, rows may be sorted by expert; their bits then depend on the number of rows.
    pub(crate) fn forward(&self, input: &Array, may_sort: bool) -> Result<Array> {
        self.forward_routed_by(input, input, may_sort)
    }

    /// Like [`forward`](Self::forward), but the router reads other rows than the experts.
    pub(crate) fn forward_routed_by(&self, read: &Array, input: &Array, may_sort: bool) -> Result<Array> {
        let (chosen, shares) = self.router.forward(read)?;
        let narrow = self.latent.as_ref().map(|[into, _]| into.forward(input)).transpose()?;
        let rows = narrow.as_ref().unwrap_or(input);
        let outer = if may_sort && chosen.size() >= WORTH_SORTING {
            self.run_sorted(rows, &chosen)?
        } else {
            self.run_experts(&expand_dims_axes(rows, &[1, 2])?, &chosen, false)?.squeeze_axes(&[2])?
        };
        // The weighted sum is one small product for each row.
        let mixed = matmul(expand_dims_axes(&shares, &[1])?, outer)?;
        let mut mixed = mixed.squeeze_axes(&[1])?;
        if let Some(shard) = &self.shard {
            mixed = shard.sum(&mixed)?;
        }
        if let Some([_, out]) = &self.latent {
            mixed = out.forward(&mixed)?;
        }
        match &self.shared {
            Some(expert) => {
                let sum = add(mixed, expert.forward(input)?)?;
                Ok(if self.averages_shared { multiply(&sum, scalar_like(0.5, &sum)?)? } else { sum })
            }
            None => Ok(mixed),
        }
    }

    /// Runs `[.., 1, hidden]` through the experts `topk_ids`. Returns the same shape.
    fn run_experts(&self, rows: &Array, topk_ids: &Array, sorted: bool) -> Result<Array> {
        let wide = self.gate_up.forward(rows, topk_ids, sorted)?;
        self.down.forward(&self.activation.forward(&wide)?, topk_ids, sorted)
    }

    /// Runs `[T, hidden]` through the experts `topk_ids`, `[T, k]`, expert by expert, so that the weights of each are read once instead of
    /// once per row. Returns `[T, k, hidden]`.
    fn run_sorted(&self, input: &Array, topk_ids: &Array) -> Result<Array> {
        let (rows, width) = (input.dim(0), input.dim(1));
        let chosen = topk_ids.reshape(&[-1])?;
        let order = argsort_axis(&chosen, 0)?;
        let of_rows = floor_divide(&order, Array::from_int(self.num_experts_per_tok))?;
        // A new axis of expand_dims has a stride of 1, which MLX 0.32.2 for NVIDIA GPUs takes for the distance of the rows.
        let sorted_rows = input.take_axis(of_rows, 0)?.reshape(&[-1, 1, width])?;
        let outer = self.run_experts(&sorted_rows, &chosen.take_axis(&order, 0)?, true)?;
        let back = argsort_axis(&order, 0)?;
        Ok(outer.take_axis(back, 0)?.reshape(&[rows, self.num_experts_per_tok, width])?)
    }
}

impl ExpertActivationFn {
    /// Maps the output of the first projections to the input of the last one, which has half the width if there are gates.
    fn forward(&self, wide: &Array) -> Result<Array> {
        match self {
            Self::Plain(activation) => activation.forward(wide),
            Self::Gated(activation) => {
                let both = split_equal(wide, 2, -1)?;
                Ok(multiply(activation.forward(&both[0])?, &both[1])?)
            }
            Self::Clamped { alpha, limit } => {
                let both = split_equal(wide, 2, -1)?;
                let number = |value: f32| scalar_like(value, wide);
                let (low, high) = (number(-limit)?, number(*limit)?);
                let gate = clip(&both[0], ((), &high))?;
                let up = clip(&both[1], (&low, &high))?;
                let open = multiply(&gate, sigmoid(multiply(&gate, number(*alpha)?)?)?)?;
                Ok(multiply(open, add(up, number(1.0)?)?)?)
            }
        }
    }
}
