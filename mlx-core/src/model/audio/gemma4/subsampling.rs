//! Two convolutions over time and frequency, each of which halves both.

use mlx_rs::ops::{conv2d, maximum};
use mlx_rs::{Array, Dtype};

use super::config::AudioConfig;
use crate::array::scalar_like;
use crate::error::Result;
use crate::model::audio::kernel;
use crate::model::linear::{Linear, Part};
use crate::model::norm::{Norm, NormConfig, NormKind};
use crate::weights::Weights;

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
    fn load(weights: &mut Weights, name: &str, channels: [usize; 2], norm: NormConfig) -> Result<Self> {
        let kernel = kernel::load(weights, &format!("{name}.conv.weight"), channels)?;
        Ok(Self { kernel, norm: Norm::load(weights, &format!("{name}.norm"), channels[0], norm)? })
    }

    /// Maps `[1, frames, bins, inputs]` to half as many frames and bins, as if zeros were around them.
    fn forward(&self, maps: &Array) -> Result<Array> {
        let dtype: Dtype = maps.dtype();
        let output = conv2d(maps, &self.kernel.as_dtype(dtype)?, (2, 2), (1, 1), None, None)?;
        let normed = self.norm.forward(&output)?;
        Ok(maximum(&normed, scalar_like(0.0, &normed)?)?)
    }
}
