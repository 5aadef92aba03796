//! Root mean square normalisation (Zhang and Sennrich, 2019, arXiv:1910.07467).

use mlx_rs::Array;
use mlx_rs::fast::rms_norm;

use crate::error::Result;
use crate::weights::Weights;

/// `x / sqrt(mean(x^2) + epsilon) * weight` over the last axis.
pub(crate) struct RmsNorm {
    /// `[width]`
    weight: Array,
    epsilon: f32,
}

impl RmsNorm {
    /// Takes `{name}.weight` of shape `[width]`.
    pub(crate) fn load(weights: &mut Weights, name: &str, width: usize, epsilon: f32) -> Result<Self> {
        Ok(Self { weight: weights.take(&format!("{name}.weight"), &[width])?, epsilon })
    }

    /// `[..., width]` to the same shape.
    pub(crate) fn forward(&self, input: &Array) -> Result<Array> {
        Ok(rms_norm(input, Some(&self.weight), self.epsilon)?)
    }
}
