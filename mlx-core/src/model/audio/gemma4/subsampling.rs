//! Two convolutions over time and frequency, each of which halves both.

use mlx_rs::ops::{conv2d, maximum};
use mlx_rs::{Array, Dtype};

use super::config::AudioConfig;
use crate::array::scalar_like;
use crate::error::Result;
use crate::model::linear::{Linear, Part};
use crate::model::norm::{Norm, NormConfig, NormKind};
use crate::weights::Weights;

/// The frames and bins that a kernel reads.
const KERNEL: usize = 3;

/// The convolutions and the projection to rows.
pub(super) struct Subsampling {
    layers: [Convolution; 2],
    input_proj: Linear,
}

/// A convolution, the norm of its channels, and the positive part.
struct Convolution {
    /// `[outputs, 3, 3, inputs]`
    kernel: Array,
    norm: Norm,
}

impl Subsampling {
    pub(super) fn load(weights: &mut Weights, name: &str, config: &AudioConfig) -> Result<Self> {
        let [first, second] = config.subsampling_conv_channels;
        let norm = NormConfig { kind: NormKind::Layer, ..config.norm };
        let layers = [
            Convolution::load(weights, &format!("{name}.layer0"), [first, 1], norm)?,
            Convolution::load(weights, &format!("{name}.layer1"), [second, first], norm)?,
        ];
        let output = Part { name: &format!("{name}.input_proj_linear"), outputs: config.hidden_size };
        let inputs = config.bins.div_ceil(2).div_ceil(2) * second;
        Ok(Self { layers, input_proj: Linear::load(weights, &[output], inputs, false)? })
    }

    /// Maps `[frames, bins]` to `[frames / 4, hidden]`, rounded up.
    pub(super) fn forward(&self, frames: &Array) -> Result<Array> {
        let mut maps = frames.reshape(&[1, frames.dim(0), frames.dim(1), 1])?;
        for layer in &self.layers {
            maps = layer.forward(&maps)?;
        }
        self.input_proj.forward(&maps.reshape(&[maps.dim(1), -1])?)
    }
}

impl Convolution {
    /// Loads a kernel. transformers' files have its sides last, those of MLX in the middle.
    fn load(
        weights: &mut Weights,
        name: &str,
        [outputs, inputs]: [usize; 2],
        norm: NormConfig,
    ) -> Result<Self> {
        let tensor = format!("{name}.conv.weight");
        let published = [outputs, inputs, KERNEL, KERNEL];
        let kernel = if weights.shape(&tensor).is_some_and(|shape| shape == published) {
            weights.take(&tensor, &published)?.transpose_axes(&[0, 2, 3, 1])?.contiguous()?
        } else {
            weights.take(&tensor, &[outputs, KERNEL, KERNEL, inputs])?
        };
        kernel.eval()?;
        Ok(Self { kernel, norm: Norm::load(weights, &format!("{name}.norm"), outputs, norm)? })
    }

    /// Maps `[1, frames, bins, inputs]` to half as many frames and bins, as if zeros were around them.
    fn forward(&self, maps: &Array) -> Result<Array> {
        let dtype: Dtype = maps.dtype();
        let output = conv2d(maps, &self.kernel.as_dtype(dtype)?, (2, 2), (1, 1), None, None)?;
        let normed = self.norm.forward(&output)?;
        Ok(maximum(&normed, scalar_like(0.0, &normed)?)?)
    }
}
