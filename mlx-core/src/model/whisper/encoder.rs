//! The encoder of Whisper: two convolutions, positions, and layers in which every position attends to all others. A pass runs layer by layer,
//! so that other work can run between two layers.

use std::f64::consts::PI;

use mlx_rs::ops::{add, concatenate, zeros_dtype};
use mlx_rs::{Array, Dtype};

use super::attention::{KeysValues, WhisperAttention};
use super::config::{SOURCE_POSITIONS, WhisperConfig};
use crate::array::slice_axis;
use crate::error::{Error, Result};
use crate::model::activation::{Activated, Activation};
use crate::model::linear::{Linear, Matrix, Part};
use crate::model::norm::{Norm, NormConfig, NormKind};
use crate::weights::Weights;

/// The norms of all layers.
pub(in crate::model) const NORM: NormConfig = NormConfig { kind: NormKind::LayerWithBias, eps: 1e-5 };

/// The frames that a convolution reads for one output.
const KERNEL: usize = 3;

/// The encoder with its weights.
pub(super) struct AudioEncoder {
    convolutions: [Convolution; 2],
    activated: Activated,
    /// `[SOURCE_POSITIONS, hidden]`
    positions: Array,
    pub(super) layers: Vec<EncoderLayer>,
    norm: Norm,
    mel_bins: usize,
    dtype: Dtype,
}

/// A pass of the encoder between two layers.
pub struct EncoderPass {
    /// The output of the last layer that has run. After all layers, it is normed.
    pub(super) hidden: Array,
    /// The number of layers that have run.
    pub(super) layers: usize,
    /// The keys and values of the output, for the first layers of the decoder.
    pub(super) heard: Vec<KeysValues>,
}

/// The keys and values of an encoded window, for each layer of the decoder. Clones share them.
#[derive(Clone)]
pub struct EncodedAudio(pub(super) Vec<KeysValues>);

/// A convolution of three frames, as a product with the frames side by side.
struct Convolution {
    product: Linear,
    stride: i32,
}

/// A layer with its weights.
pub(super) struct EncoderLayer {
    attention_norm: Norm,
    attention: WhisperAttention,
    feed_forward: WhisperFeedForward,
}

/// A norm, an expanding projection, an activation function and a projection back.
pub(in crate::model) struct WhisperFeedForward {
    norm: Norm,
    up: Linear,
    activated: Activated,
    down: Linear,
}

impl AudioEncoder {
    pub(super) fn load(weights: &mut Weights, config: &WhisperConfig) -> Result<Self> {
        let (hidden, dtype) = (config.hidden_size, weights.dtype());
        let name = "model.encoder";
        let convolutions = [
            Convolution::load(weights, &format!("{name}.conv1"), [hidden, config.mel_bins], 1)?,
            Convolution::load(weights, &format!("{name}.conv2"), [hidden, hidden], 2)?,
        ];
        let table = format!("{name}.embed_positions.weight");
        let positions = if weights.has(&table) {
            weights.take(&table, &[SOURCE_POSITIONS, hidden])?
        } else {
            sinusoids([SOURCE_POSITIONS, hidden]).as_dtype(dtype)?
        };
        let (stack, widths) = (config.encoder, [hidden, config.encoder.intermediate_size]);
        let layer = |index: usize| -> Result<EncoderLayer> {
            let name = format!("{name}.layers.{index}");
            let attention = format!("{name}.self_attn");
            Ok(EncoderLayer {
                attention_norm: Norm::load(weights, &format!("{name}.self_attn_layer_norm"), hidden, NORM)?,
                attention: WhisperAttention::load(weights, &attention, hidden, stack.heads)?,
                feed_forward: WhisperFeedForward::load(weights, &name, widths, config.activation)?,
            })
        };
        let layers = (0..stack.layers).map(layer).collect::<Result<_>>()?;
        Ok(Self {
            convolutions,
            activated: Activated::load(weights, name, config.activation)?,
            positions,
            layers,
            norm: Norm::load(weights, &format!("{name}.layer_norm"), hidden, NORM)?,
            mel_bins: config.mel_bins,
            dtype,
        })
    }

    /// Begins a pass over the frames of a window, mel bins first. Nothing is computed until a layer is.
    pub(super) fn begin(&self, features: &[f32]) -> Result<EncoderPass> {
        let frames = 2 * SOURCE_POSITIONS;
        if features.len() != frames * self.mel_bins {
            let message =
                format!("has {} numbers; a window needs {}", features.len(), frames * self.mel_bins);
            return Err(Error::request("audio", message));
        }
        let mut hidden =
            Array::from_slice(features, &[frames as i32, self.mel_bins as i32]).as_dtype(self.dtype)?;
        for convolution in &self.convolutions {
            hidden = self.activated.forward(&convolution.forward(&hidden)?)?;
        }
        Ok(EncoderPass { hidden: add(&hidden, &self.positions)?, layers: 0, heard: Vec::new() })
    }

    /// Computes the next layer.
    pub(super) fn advance(&self, pass: &mut EncoderPass) -> Result<()> {
        let Some(layer) = self.layers.get(pass.layers) else { return Ok(()) };
        pass.hidden = layer.forward(&pass.hidden)?;
        pass.layers += 1;
        if pass.layers == self.layers.len() {
            pass.hidden = self.norm.forward(&pass.hidden)?;
        }
        Ok(pass.hidden.eval()?)
    }
}

impl EncoderLayer {
    fn forward(&self, input: &Array) -> Result<Array> {
        let normed = self.attention_norm.forward(input)?;
        let attended = self.attention.attend(&normed, &self.attention.keys_values(&normed)?)?;
        self.feed_forward.forward(&add(input, attended)?)
    }
}

impl WhisperFeedForward {
    /// Loads the tensors of the layer `name`, which has rows of `hidden` numbers, and `width` between its projections.
    pub(in crate::model) fn load(
        weights: &mut Weights,
        name: &str,
        [hidden, width]: [usize; 2],
        activation: Activation,
    ) -> Result<Self> {
        let mut linear = |part: &str, outputs: usize, inputs: usize| {
            Linear::load(weights, &[Part { name: &format!("{name}.{part}"), outputs }], inputs, true)
        };
        let (up, down) = (linear("fc1", width, hidden)?, linear("fc2", hidden, width)?);
        Ok(Self {
            norm: Norm::load(weights, &format!("{name}.final_layer_norm"), hidden, NORM)?,
            up,
            activated: Activated::load(weights, name, activation)?,
            down,
        })
    }

    /// Returns the input plus the output of the block.
    pub(in crate::model) fn forward(&self, input: &Array) -> Result<Array> {
        let wide = self.up.forward(&self.norm.forward(input)?)?;
        Ok(add(input, self.down.forward(&self.activated.forward(&wide)?)?)?)
    }
}

impl Convolution {
    /// Loads a kernel. transformers' files have its width last, those of MLX in the middle.
    fn load(weights: &mut Weights, name: &str, [outputs, inputs]: [usize; 2], stride: i32) -> Result<Self> {
        let tensor = format!("{name}.weight");
        let is_last = weights.shape(&tensor).is_some_and(|shape| shape == [outputs, inputs, KERNEL]);
        let kernel = if is_last {
            weights.take(&tensor, &[outputs, inputs, KERNEL])?.swap_axes(1, 2)?
        } else {
            weights.take(&tensor, &[outputs, KERNEL, inputs])?
        };
        let matrix =
            kernel.reshape(&[outputs as i32, (KERNEL * inputs) as i32])?.contiguous()?.swap_axes(0, 1)?;
        matrix.eval()?;
        let bias = weights.take(&format!("{name}.bias"), &[outputs])?;
        Ok(Self { product: Linear::new(Matrix::Dense(matrix), Some(bias)), stride })
    }

    /// Maps `[frames, inputs]` to `[frames / stride, outputs]`, with a frame of zeros on both sides.
    fn forward(&self, frames: &Array) -> Result<Array> {
        let (count, width) = (frames.dim(0), frames.dim(1));
        let zeros = zeros_dtype(&[1, width], frames.dtype())?;
        let padded = concatenate(&[&zeros, frames, &zeros], 0)?;
        let shifted = (0..KERNEL as i32).map(|shift| slice_axis(&padded, 0, shift, shift + count));
        let shifted = shifted.collect::<Result<Vec<_>>>()?;
        let mut side_by_side = concatenate(&shifted.iter().collect::<Vec<_>>(), 1)?;
        if self.stride > 1 {
            let rows = side_by_side.reshape(&[count / self.stride, self.stride, KERNEL as i32 * width])?;
            side_by_side = slice_axis(&rows, 1, 0, 1)?.reshape(&[count / self.stride, -1])?;
        }
        self.product.forward(&side_by_side)
    }
}

/// Returns a table of `positions` with `width` numbers each: sines, then cosines.
pub(in crate::model) fn sinusoids([positions, width]: [usize; 2]) -> Array {
    let half = width / 2;
    let step = 10_000f64.ln() / (half.max(2) - 1) as f64;
    let angle = |position: usize, place: usize| position as f64 * (-step * (place % half) as f64).exp();
    let number = |position: usize, place: usize| {
        let angle = angle(position, place);
        // A cosine is a sine, shifted by a quarter of a turn.
        (if place < half { angle } else { angle + PI / 2.0 }).sin() as f32
    };
    let rows = (0..positions).flat_map(|position| (0..width).map(move |place| number(position, place)));
    Array::from_slice(&rows.collect::<Vec<f32>>(), &[positions as i32, width as i32])
}
