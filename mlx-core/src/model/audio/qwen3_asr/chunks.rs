//! The convolutions of Qwen3-ASR's tower: each of three halves the time and the frequency of chunks. A row has its position in its chunk.

use mlx_rs::Array;
use mlx_rs::ops::{add, concatenate, conv2d, zeros_dtype};

use super::config::{CHUNKS_AT_ONCE, TowerConfig};
use crate::array::slice_axis;
use crate::error::Result;
use crate::model::activation::{Activated, Activation};
use crate::model::audio::kernel;
use crate::model::linear::{Linear, Part};
use crate::model::whisper::sinusoids;
use crate::processor::{CHUNK_FRAMES, ClipFrames};
use crate::weights::Weights;

/// The convolutions and the projection to rows.
pub(super) struct Chunks {
    convolutions: [Convolution; 3],
    activated: Activated,
    projection: Linear,
    /// `[rows of a chunk, hidden]`
    positions: Array,
    frames: ClipFrames,
}

/// A convolution of time and frequency with a bias.
struct Convolution {
    /// `[outputs, 3, 3, inputs]`
    kernel: Array,
    /// `[outputs]`
    bias: Array,
}

impl Chunks {
    /// Loads the tensors under `{name}.`, such as `conv2d1`.
    pub(super) fn load(weights: &mut Weights, name: &str, config: &TowerConfig) -> Result<Self> {
        let (channels, hidden) = (config.channels, config.hidden_size);
        let frames = ClipFrames::ChunkedMel { bins: config.bins };
        let convolutions = [
            Convolution::load(weights, &format!("{name}.conv2d1"), [channels, 1])?,
            Convolution::load(weights, &format!("{name}.conv2d2"), [channels, channels])?,
            Convolution::load(weights, &format!("{name}.conv2d3"), [channels, channels])?,
        ];
        let output = Part { name: &format!("{name}.conv_out"), outputs: hidden };
        let inputs = channels * config.bins.div_ceil(2).div_ceil(2).div_ceil(2);
        Ok(Self {
            convolutions,
            activated: Activated::load(weights, name, Activation::Gelu)?,
            projection: Linear::load(weights, &[output], inputs, false)?,
            positions: sinusoids([frames.rows(CHUNK_FRAMES), hidden]).as_dtype(weights.dtype())?,
            frames,
        })
    }

    /// Maps `[frames, bins]` to `[rows, hidden]`. The last chunk continues with zeros.
    pub(super) fn forward(&self, frames: &Array) -> Result<Array> {
        let (count, bins) = (frames.dim(0) as usize, frames.dim(1));
        let missing = count.next_multiple_of(CHUNK_FRAMES) - count;
        let zeros = zeros_dtype(&[missing as i32, bins], frames.dtype())?;
        let chunks = concatenate(&[frames, &zeros], 0)?.reshape(&[-1, CHUNK_FRAMES as i32, bins])?;
        let chunks = chunks.swap_axes(1, 2)?.expand_dims(3)?;
        let mut rows = Vec::new();
        for start in (0..chunks.dim(0)).step_by(CHUNKS_AT_ONCE) {
            let end = chunks.dim(0).min(start + CHUNKS_AT_ONCE as i32);
            let some = self.rows(&slice_axis(&chunks, 0, start, end)?)?;
            // Evaluating here limits the memory to that of some chunks.
            some.eval()?;
            rows.push(some);
        }
        let rows = concatenate(&rows.iter().collect::<Vec<_>>(), 0)?;
        slice_axis(&rows, 0, 0, self.frames.rows(count) as i32)
    }

    /// Maps `[chunks, bins, frames, 1]` to the rows of all chunks.
    fn rows(&self, chunks: &Array) -> Result<Array> {
        let mut maps = chunks.clone();
        for convolution in &self.convolutions {
            maps = self.activated.forward(&convolution.forward(&maps)?)?;
        }
        // The bins of a channel are side by side.
        let maps = maps.transpose_axes(&[0, 2, 3, 1])?.reshape(&[chunks.dim(0), maps.dim(2), -1])?;
        let placed = add(self.projection.forward(&maps)?, &self.positions)?;
        Ok(placed.reshape(&[-1, placed.dim(2)])?)
    }
}

impl Convolution {
    fn load(weights: &mut Weights, name: &str, channels: [usize; 2]) -> Result<Self> {
        let kernel = kernel::load(weights, &format!("{name}.weight"), channels)?;
        Ok(Self { kernel, bias: weights.take(&format!("{name}.bias"), &channels[..1])? })
    }

    /// Maps `[chunks, bins, frames, inputs]` to half as many bins and frames, as if zeros were around them.
    fn forward(&self, maps: &Array) -> Result<Array> {
        let output = conv2d(maps, &self.kernel.as_dtype(maps.dtype())?, (2, 2), (1, 1), None, None)?;
        Ok(add(&output, &self.bias)?)
    }
}
