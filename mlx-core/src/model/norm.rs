//! Normalization of a vector: by its root mean square (Zhang and Sennrich, 2019, arXiv:1910.07467), or by its mean and standard deviation
//! (Ba et al., 2016, arXiv:1607.06450).

use mlx_rs::Array;
use mlx_rs::fast::{layer_norm, rms_norm};
use mlx_rs::ops::add;

use crate::error::Result;
use crate::weights::Weights;

/// The formula of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + epsilon) * weight`.
    Rms,
    /// `x / sqrt(mean(x^2) + epsilon) * (1 + weight)`.
    RmsPlusOne,
    /// `(x - mean(x)) / sqrt(variance(x) + epsilon) * weight`.
    Layer,
    /// `(x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias`.
    LayerWithBias,
    /// `(x - mean(x)) / sqrt(variance(x) + epsilon) * (1 + weight) + bias`.
    LayerPlusOneWithBias,
    /// `x / sqrt(mean(x^2) + epsilon)`.
    RmsWithoutWeight,
    /// `(x - mean(x)) / sqrt(variance(x) + epsilon)`.
    LayerWithoutWeight,
}

impl NormKind {
    /// Returns true if it divides by the root mean square.
    pub(super) fn is_rms(self) -> bool {
        matches!(self, Self::Rms | Self::RmsPlusOne | Self::RmsWithoutWeight)
    }

    /// Returns true if it multiplies with a weight.
    pub(super) fn has_weight(self) -> bool {
        !matches!(self, Self::RmsWithoutWeight | Self::LayerWithoutWeight)
    }
}

/// The config of a decoder's norms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormConfig {
    /// The formula.
    pub kind: NormKind,
    /// The epsilon that is added to the mean square or the variance before the root.
    pub eps: f32,
}

impl NormConfig {
    /// Loads `{name}.weight` of `shape` as the factor of the normalized vector.
    pub(super) fn weight(self, weights: &mut Weights, name: &str, shape: &[usize]) -> Result<Array> {
        let weight = weights.take(&format!("{name}.weight"), shape)?;
        if !matches!(self.kind, NormKind::RmsPlusOne | NormKind::LayerPlusOneWithBias) {
            return Ok(weight);
        }
        let weight = add(&weight, Array::from_f32(1.0).as_dtype(weight.dtype())?)?;
        weight.eval()?;
        Ok(weight)
    }

    /// Normalizes along the last axis, without a weight.
    pub(super) fn plain(self, input: &Array) -> Result<Array> {
        Ok(if self.kind.is_rms() {
            rms_norm(input, None, self.eps)?
        } else {
            layer_norm(input, None, None, self.eps)?
        })
    }
}

/// A norm over the last axis with its weights.
pub(crate) struct Norm {
    config: NormConfig,
    /// `[width]`
    weight: Option<Array>,
    /// `[width]`
    bias: Option<Array>,
}

impl Norm {
    /// Loads `{name}.weight` of shape `[width]`, and `{name}.bias` if the kind has one.
    pub(crate) fn load(weights: &mut Weights, name: &str, width: usize, config: NormConfig) -> Result<Self> {
        let weight = config.kind.has_weight().then(|| config.weight(weights, name, &[width])).transpose()?;
        let bias = match config.kind {
            NormKind::LayerWithBias | NormKind::LayerPlusOneWithBias => {
                Some(weights.take(&format!("{name}.bias"), &[width])?)
            }
            _ => None,
        };
        Ok(Self { config, weight, bias })
    }

    /// Maps `[..., width]` to the same shape.
    pub(crate) fn forward(&self, input: &Array) -> Result<Array> {
        let NormConfig { kind, eps: epsilon } = self.config;
        Ok(if kind.is_rms() {
            rms_norm(input, self.weight.as_ref(), epsilon)?
        } else {
            layer_norm(input, self.weight.as_ref(), self.bias.as_ref(), epsilon)?
        })
    }
}
