//! A layer of Qwen3-ASR's tower: attention within windows, and a feed-forward block.

use mlx_rs::Array;
use mlx_rs::fast::scaled_dot_product_attention;
use mlx_rs::ops::{add, concatenate};

use super::config::TowerConfig;
use crate::array::slice_axis;
use crate::error::Result;
use crate::model::linear::{Linear, Part};
use crate::model::norm::Norm;
use crate::model::whisper::{NORM, WhisperFeedForward};
use crate::weights::Weights;

/// A layer with its weights.
pub(super) struct Layer {
    norm: Norm,
    /// The projections to queries, keys and values, side by side.
    inputs: Linear,
    output: Linear,
    feed_forward: WhisperFeedForward,
    heads: i32,
    /// The rows of a window.
    window: i32,
    scale: f32,
}

impl Layer {
    /// Loads the tensors under `{name}.`, such as `fc1`.
    pub(super) fn load(weights: &mut Weights, name: &str, config: &TowerConfig) -> Result<Self> {
        let hidden = config.hidden_size;
        let names = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{name}.self_attn.{part}"));
        let inputs = names.each_ref().map(|name| Part { name, outputs: hidden });
        let output = Part { name: &format!("{name}.self_attn.out_proj"), outputs: hidden };
        let widths = [hidden, config.intermediate_size];
        Ok(Self {
            norm: Norm::load(weights, &format!("{name}.self_attn_layer_norm"), hidden, NORM)?,
            inputs: Linear::load(weights, &inputs, hidden, true)?,
            output: Linear::load(weights, &[output], hidden, true)?,
            feed_forward: WhisperFeedForward::load(weights, name, widths, config.activation)?,
            heads: config.heads as i32,
            window: config.window as i32,
            scale: ((hidden / config.heads) as f32).powf(-0.5),
        })
    }

    /// Maps `[rows, hidden]` to the same shape.
    pub(super) fn forward(&self, rows: &Array) -> Result<Array> {
        let projected = self.inputs.forward(&self.norm.forward(rows)?)?;
        let whole = rows.dim(0) / self.window * self.window;
        let mut attended = Vec::new();
        for (start, end, window) in [(0, whole, self.window), (whole, rows.dim(0), rows.dim(0) - whole)] {
            if start < end {
                attended.push(self.attend(&slice_axis(&projected, 0, start, end)?, window)?);
            }
        }
        let attended = concatenate(&attended.iter().collect::<Vec<_>>(), 0)?;
        self.feed_forward.forward(&add(rows, self.output.forward(&attended)?)?)
    }

    /// Lets the rows of each window attend to each other. `projected` has whole windows.
    fn attend(&self, projected: &Array, window: i32) -> Result<Array> {
        let parts = projected.reshape(&[-1, window, 3, self.heads, projected.dim(1) / 3 / self.heads])?;
        let part = |index: i32| -> Result<Array> {
            Ok(slice_axis(&parts, 2, index, index + 1)?.squeeze_axes(&[2])?.swap_axes(1, 2)?)
        };
        let mixed = scaled_dot_product_attention(&part(0)?, &part(1)?, &part(2)?, self.scale, None, None)?;
        Ok(mixed.swap_axes(1, 2)?.reshape(&[projected.dim(0), -1])?)
    }
}
