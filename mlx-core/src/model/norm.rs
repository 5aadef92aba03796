//! Normalization of a vector: by its root mean square (Zhang and Sennrich, 2019, arXiv:1910.07467) or by its mean and deviation
//! (Ba et al., 2016, arXiv:1607.06450).

use mlx_rs::Array;
use mlx_rs::fast::{layer_norm, rms_norm};
use mlx_rs::ops::add;

use crate::error::Result;
use crate::weights::Weights;

/// What a norm divides by, and what it multiplies with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + epsilon) * weight`.
    Rms,
    /// The same with `1 + weight`.
    RmsPlusOne,
    /// `(x - mean(x)) / sqrt(variance(x) + epsilon) * weight`.
    Layer,
    /// The same, and a bias added.
    LayerWithBias,
}

impl NormKind {
    /// Whether it divides by the root mean square.
    pub(super) fn is_rms(self) -> bool {
        matches!(self, Self::Rms | Self::RmsPlusOne)
    }
}

/// The norms of a decoder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormConfig {
    /// What they do.
    pub kind: NormKind,
    /// Added to the mean square, or the variance, before its root.
    pub eps: f32,
}

impl NormConfig {
    /// Takes the weight `{name}.weight` of `shape` that the normalized vector is multiplied with.
    pub(super) fn weight(self, weights: &mut Weights, name: &str, shape: &[usize]) -> Result<Array> {
        let weight = weights.take(&format!("{name}.weight"), shape)?;
        if self.kind != NormKind::RmsPlusOne {
            return Ok(weight);
        }
        let weight = add(&weight, Array::from_f32(1.0).as_dtype(weight.dtype())?)?;
        weight.eval()?;
        Ok(weight)
    }

    /// The vector along the last axis, normalized and not multiplied with anything.
    pub(super) fn plain(self, input: &Array) -> Result<Array> {
        Ok(match self.kind {
            NormKind::Rms | NormKind::RmsPlusOne => rms_norm(input, None, self.eps)?,
            NormKind::Layer | NormKind::LayerWithBias => layer_norm(input, None, None, self.eps)?,
        })
    }
}

/// A norm over the last axis with its weights.
pub(crate) struct Norm {
    config: NormConfig,
    /// `[width]`
    weight: Array,
    /// `[width]`
    bias: Option<Array>,
}

impl Norm {
    /// Takes `{name}.weight` of shape `[width]`, and `{name}.bias` if the kind has one.
    pub(crate) fn load(weights: &mut Weights, name: &str, width: usize, config: NormConfig) -> Result<Self> {
        let weight = config.weight(weights, name, &[width])?;
        let bias = match config.kind {
            NormKind::LayerWithBias => Some(weights.take(&format!("{name}.bias"), &[width])?),
            _ => None,
        };
        Ok(Self { config, weight, bias })
    }

    /// `[..., width]` to the same shape.
    pub(crate) fn forward(&self, input: &Array) -> Result<Array> {
        let NormConfig { kind, eps: epsilon } = self.config;
        Ok(match kind {
            NormKind::Rms | NormKind::RmsPlusOne => rms_norm(input, Some(&self.weight), epsilon)?,
            NormKind::Layer | NormKind::LayerWithBias => {
                layer_norm(input, &self.weight, self.bias.as_ref(), epsilon)?
            }
        })
    }
}
