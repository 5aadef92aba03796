//! Chooses the experts of each row and their weights. Invariant: the choice of a row depends only on that row.

use mlx_rs::fast::rms_norm;
use mlx_rs::ops::indexing::{TryIndexOp, argmax_axis, put_along_axis, take_along_axis, topk_axis};
use mlx_rs::ops::{
    abs, add, argpartition_axis, concatenate, divide, expand_dims_axes, gt, max_axis, maximum, multiply,
    negative, select, sigmoid, softmax_axis, subtract, sum_axis,
};
use mlx_rs::{Array, Dtype};

use super::config::{ExpertGroups, GroupScore, MoeConfig, RoutingConfig, ScoringFunc};
use crate::array::scalar_like;
use crate::error::Result;
use crate::model::linear::{Linear, Part};
use crate::model::norm::NormConfig;
use crate::model::softcap::softcap;
use crate::weights::Weights;

/// Added to the sum of the chosen scores, so that it is never 0.
const LEAST_SUM: f32 = 1e-20;

/// A router with its weights.
pub(super) struct Router {
    gate: Linear,
    /// `[experts]`, f32: added to the scores for the choice, not to the weights.
    correction_bias: Option<Array>,
    scaled: Option<Scaled>,
    config: RoutingConfig,
    num_experts_per_tok: i32,
}

/// The factors of the router's input and output.
struct Scaled {
    eps: f32,
    /// `[hidden]`
    input: Array,
    /// `[experts]`
    per_expert: Array,
}

impl Router {
    /// Loads the router's tensors under `{name}.`, for a residual stream of width `hidden`.
    pub(super) fn load(weights: &mut Weights, name: &str, hidden: usize, config: &MoeConfig) -> Result<Self> {
        let (gate, count) = (format!("{name}.{}", config.router), config.num_experts);
        let mut correction_bias = None;
        if let Some(bias) = config.routing.correction_bias {
            let name = format!("{name}.{}", bias.name);
            if !bias.as_found || weights.has(&name) {
                weights.keep_f32(bias.name);
                let shape = weights.shape(&name).filter(|shape| *shape == [1, count]);
                let shape = shape.map_or(vec![count], <[usize]>::to_vec);
                correction_bias = Some(weights.take(&name, &shape)?.reshape(&[count as i32])?);
            }
        }
        Ok(Self {
            gate: Linear::load(weights, &[Part { name: &gate, outputs: count }], hidden, config.bias)?,
            correction_bias,
            scaled: config
                .routing
                .scaled
                .map(|norm| Scaled::load(weights, name, hidden, count, norm))
                .transpose()?,
            config: config.routing,
            num_experts_per_tok: config.num_experts_per_tok as i32,
        })
    }

    /// Returns the experts of each row of `[T, hidden]`, `[T, chosen]`, and their weights, of the same shape.
    pub(super) fn forward(&self, input: &Array) -> Result<(Array, Array)> {
        let logits = match &self.scaled {
            Some(scaled) => self.gate.forward(&rms_norm(input, Some(&scaled.input), scaled.eps)?)?,
            None => self.gate.forward(input)?,
        };
        let logits = match self.config.logit_softcap {
            Some(cap) => softcap(&logits.as_dtype(Dtype::Float32)?, cap)?,
            None => logits,
        };
        let (chosen, shares) = match self.config.scoring_func {
            ScoringFunc::Softmax if self.correction_bias.is_none() && self.config.groups.is_none() => {
                let chosen = self.best(&logits)?;
                let shares = self.softmax_shares(&logits, &chosen)?;
                (chosen, shares)
            }
            ScoringFunc::Softmax => {
                let chosen = self.best(&self.for_choice(&softmax_axis(
                    &logits.as_dtype(Dtype::Float32)?,
                    -1,
                    true,
                )?)?)?;
                let shares = self.softmax_shares(&logits, &chosen)?;
                (chosen, shares)
            }
            ScoringFunc::Sigmoid => {
                let scores = sigmoid(&logits.as_dtype(Dtype::Float32)?)?;
                let chosen = self.best(&self.for_choice(&scores)?)?;
                let shares = self.divided(take_along_axis(&scores, &chosen, -1)?)?;
                (chosen, shares)
            }
            ScoringFunc::SparseMixer { jitter } => sparse_mixer(&logits, jitter)?,
        };
        let shares = match self.config.routed_scaling_factor {
            1.0 => shares,
            factor => multiply(&shares, scalar_like(factor, &shares)?)?,
        };
        let shares = match &self.scaled {
            Some(scaled) => multiply(&shares, scaled.per_expert.take_axis(&chosen, 0)?)?,
            None => shares,
        };
        Ok((chosen, shares.as_dtype(input.dtype())?))
    }

    /// Returns the indices of the highest scores of each row.
    fn best(&self, scores: &Array) -> Result<Array> {
        let order = argpartition_axis(negative(scores)?, self.num_experts_per_tok - 1, -1)?;
        Ok(order.try_index((.., 0..self.num_experts_per_tok))?)
    }

    /// Returns the scores for the choice: with the correction bias, and minus infinity outside the chosen groups.
    fn for_choice(&self, scores: &Array) -> Result<Array> {
        let corrected = match &self.correction_bias {
            Some(bias) => add(scores, bias)?,
            None => scores.clone(),
        };
        match self.config.groups {
            Some(groups) if groups.topk_group < groups.n_group => limit(&corrected, groups),
            _ => Ok(corrected),
        }
    }

    /// Returns weights by softmax. If they are divided by their sum, they are a softmax over only the chosen scores.
    fn softmax_shares(&self, logits: &Array, chosen: &Array) -> Result<Array> {
        Ok(if self.config.norm_topk_prob {
            softmax_axis(take_along_axis(logits, chosen, -1)?, -1, true)?
        } else {
            take_along_axis(softmax_axis(logits, -1, true)?, chosen, -1)?
        })
    }

    fn divided(&self, shares: Array) -> Result<Array> {
        if !self.config.norm_topk_prob {
            return Ok(shares);
        }
        let sum = add(sum_axis(&shares, -1, true)?, Array::from_f32(LEAST_SUM))?;
        Ok(divide(shares, sum)?)
    }
}

impl Scaled {
    /// Loads `{name}.router.scale` and `{name}.router.per_expert_scale`.
    fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        count: usize,
        norm: NormConfig,
    ) -> Result<Self> {
        let scale = weights.take(&format!("{name}.router.scale"), &[hidden])?;
        let root = scalar_like((hidden as f64).sqrt().recip() as f32, &scale)?;
        let input = multiply(&scale, root)?;
        input.eval()?;
        let per_expert = weights.take(&format!("{name}.router.per_expert_scale"), &[count])?;
        Ok(Self { eps: norm.eps, input, per_expert })
    }
}

/// Sets the scores `[T, experts]` to minus infinity outside the best groups of each row.
fn limit(scores: &Array, groups: ExpertGroups) -> Result<Array> {
    let (rows, experts, count) = (scores.dim(0), scores.dim(1), groups.n_group as i32);
    let grouped = scores.reshape(&[rows, count, experts / count])?;
    let of_group = match groups.score {
        GroupScore::BestTwo => sum_axis(topk_axis(&grouped, 2, -1)?, -1, false)?,
        GroupScore::Best => max_axis(&grouped, -1, false)?,
    };
    let dropped = count - groups.topk_group as i32;
    let worst = argpartition_axis(of_group, dropped - 1, -1)?.try_index((.., 0..dropped))?;
    let lowest = Array::from_f32(f32::NEG_INFINITY).as_dtype(scores.dtype())?;
    let kept = put_along_axis(&grouped, expand_dims_axes(&worst, &[2])?, lowest, 1)?;
    Ok(kept.reshape(&[rows, experts])?)
}

/// Chooses two experts as Phi does (SparseMixer, arXiv:2409.12136). Each is weighted by a softmax over the scores close to it.
fn sparse_mixer(logits: &Array, jitter: f32) -> Result<(Array, Array)> {
    let scores = logits.as_dtype(Dtype::Float32)?;
    let lowest = Array::from_f32(f32::NEG_INFINITY);
    let (mut left, mut chosen, mut shares) = (scores.clone(), Vec::new(), Vec::new());
    for _ in 0..2 {
        let best = argmax_axis(&left, -1, true)?;
        let top = take_along_axis(&left, &best, -1)?;
        let distance = divide(subtract(&top, &scores)?, maximum(abs(&scores)?, &top)?)?;
        let near = select(gt(distance, Array::from_f32(2.0 * jitter))?, &lowest, &left)?;
        shares.push(take_along_axis(softmax_axis(near, -1, true)?, &best, -1)?);
        left = put_along_axis(&left, &best, &lowest, -1)?;
        chosen.push(best);
    }
    Ok((concatenate(&chosen, -1)?, concatenate(&shares, -1)?))
}
