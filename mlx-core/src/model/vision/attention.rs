//! Attention inside a picture: every patch attends to all of them.

use mlx_rs::Array;
use mlx_rs::fast::scaled_dot_product_attention;
use mlx_rs::ops::concatenate;

use super::axial_rope::AxialRope;
use super::config::PixtralConfig;
use crate::array::slice_axis;
use crate::error::Result;
use crate::model::linear::{Linear, Part};
use crate::weights::Weights;

/// Patches that attend at once, which bounds the memory of their scores.
pub(super) const QUERIES: i32 = 512;

/// Attention without biases.
pub(super) struct Attention {
    /// Queries, keys and values.
    projection: Linear,
    output: Linear,
    heads: i32,
    head_dim: i32,
}

impl Attention {
    /// Takes `{name}.q_proj` and its like.
    pub(super) fn load(weights: &mut Weights, name: &str, config: &PixtralConfig) -> Result<Self> {
        let width = config.hidden_size;
        let names = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{name}.{part}"));
        let parts = names.each_ref().map(|name| Part { name, outputs: width });
        let output = Part { name: &format!("{name}.o_proj"), outputs: width };
        Ok(Self {
            projection: Linear::load(weights, &parts, width, false)?,
            output: Linear::load(weights, &[output], width, false)?,
            heads: config.num_attention_heads as i32,
            head_dim: config.head_dim as i32,
        })
    }

    /// `[patches, width]` to the same shape.
    pub(super) fn forward(&self, input: &Array, rope: &AxialRope) -> Result<Array> {
        let (patches, width) = (input.dim(0), self.heads * self.head_dim);
        let all = self.projection.forward(input)?;
        let part = |index: i32| -> Result<Array> {
            let part = slice_axis(&all, 1, index * width, (index + 1) * width)?;
            Ok(part.reshape(&[1, patches, self.heads, self.head_dim])?.transpose_axes(&[0, 2, 1, 3])?)
        };
        let (queries, keys, values) = (rope.rotate(&part(0)?)?, rope.rotate(&part(1)?)?, part(2)?);
        let scale = (self.head_dim as f32).sqrt().recip();
        let mut mixed = Vec::new();
        for start in (0..patches).step_by(QUERIES as usize) {
            let some = slice_axis(&queries, 2, start, patches.min(start + QUERIES))?;
            mixed.push(scaled_dot_product_attention(&some, &keys, &values, scale, None, None)?);
        }
        let mixed = concatenate(&mixed.iter().collect::<Vec<_>>(), 2)?;
        self.output.forward(&mixed.transpose_axes(&[0, 2, 1, 3])?.reshape(&[patches, width])?)
    }
}
