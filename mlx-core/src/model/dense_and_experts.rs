//! A dense feed-forward block in parallel with a mixture of experts (Gemma 4). Each has its own norms, and their outputs are added.

use mlx_rs::Array;
use mlx_rs::ops::add;

use super::feed_forward::{FeedForward, FeedForwardConfig};
use super::moe::{Experts, MoeConfig};
use super::norm::{Norm, NormConfig};
use crate::error::Result;
use crate::weights::Weights;

/// The dense block and the experts with their weights.
pub(super) struct DenseAndExperts {
    dense: FeedForward,
    post_dense_norm: Norm,
    pre_experts_norm: Norm,
    experts: Experts,
    post_experts_norm: Norm,
}

impl DenseAndExperts {
    /// Loads `{name}.mlp`, `{name}.router`, `{name}.experts` and their norms, for a residual stream of width `hidden`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        (dense, experts): (&FeedForwardConfig, &MoeConfig),
        norm: NormConfig,
    ) -> Result<Self> {
        let norm =
            |weights: &mut Weights, part: &str| Norm::load(weights, &format!("{name}.{part}"), hidden, norm);
        Ok(Self {
            post_dense_norm: norm(weights, "post_feedforward_layernorm_1")?,
            pre_experts_norm: norm(weights, "pre_feedforward_layernorm_2")?,
            post_experts_norm: norm(weights, "post_feedforward_layernorm_2")?,
            dense: FeedForward::load(weights, &format!("{name}.mlp"), hidden, dense)?,
            experts: Experts::load(weights, name, hidden, experts)?,
        })
    }

    /// Returns the sum of both outputs. The dense block reads `normed`; the router and the experts read the residual `stream`. Both are
    /// `[T, hidden]`. `may_sort` is as in [`Experts::forward`].
    pub(super) fn forward(&self, normed: &Array, stream: &Array, may_sort: bool) -> Result<Array> {
        let dense = self.post_dense_norm.forward(&self.dense.forward(normed)?)?;
        let input = self.pre_experts_norm.forward(stream)?;
        let mixed = self.experts.forward_routed_by(stream, &input, may_sort)?;
        Ok(add(dense, self.post_experts_norm.forward(&mixed)?)?)
    }
}
