//! Attention in a picture: every patch attends to all patches, or to those of its window.

use mlx_rs::Array;
use mlx_rs::fast::scaled_dot_product_attention;
use mlx_rs::ops::concatenate;

use super::axial_rope::AxialRope;
use crate::array::slice_axis;
use crate::error::Result;
use crate::model::linear::Linear;

/// The maximum number of scores that exist at the same time, over all heads: 256 MB of f32.
const SCORES: usize = 64 << 20;

/// Returns the number of patches that attend at the same time, which limits the memory of their scores.
pub(super) fn queries_at_once(patches: usize, heads: usize) -> usize {
    (SCORES / (patches * heads).max(1)).clamp(32, 512)
}

/// Attention with its matrices.
pub(super) struct Attention {
    /// The projection to queries, keys and values.
    pub(super) projection: Linear,
    pub(super) output: Linear,
    pub(super) heads: i32,
    pub(super) head_dim: i32,
}

impl Attention {
    /// Maps `[patches, width]` to the same shape.
    pub(super) fn forward(&self, input: &Array, rope: &AxialRope) -> Result<Array> {
        self.within(&[input.dim(0)], input, rope)
    }

    /// Like [`forward`](Self::forward), but patches attend only to their window. Windows are consecutive, and `ends` has their ends.
    pub(super) fn within(&self, ends: &[i32], input: &Array, rope: &AxialRope) -> Result<Array> {
        let (patches, width) = (input.dim(0), self.heads * self.head_dim);
        let all = self.projection.forward(input)?;
        let part = |index: i32| -> Result<Array> {
            let part = slice_axis(&all, 1, index * width, (index + 1) * width)?;
            Ok(part.reshape(&[1, patches, self.heads, self.head_dim])?.transpose_axes(&[0, 2, 1, 3])?)
        };
        let (queries, keys, values) = (rope.rotate(&part(0)?)?, rope.rotate(&part(1)?)?, part(2)?);
        let scale = (self.head_dim as f32).sqrt().recip();
        let starts = std::iter::once(&0).chain(ends);
        let windows = starts.zip(ends).map(|(&start, &end)| {
            let part = |all: &Array| slice_axis(all, 2, start, end);
            attend(&part(&queries)?, &part(&keys)?, &part(&values)?, scale)
        });
        let windows = windows.collect::<Result<Vec<_>>>()?;
        let mixed = match &windows[..] {
            [only] => only.clone(),
            all => concatenate(&all.iter().collect::<Vec<_>>(), 0)?,
        };
        self.output.forward(&mixed)
    }
}

/// Computes attention of all patches with queries, keys and values of shape `[1, heads, patches, head_dim]`. Returns
/// `[patches, heads * head_dim]`.
pub(super) fn attend(queries: &Array, keys: &Array, values: &Array, scale: f32) -> Result<Array> {
    let (heads, patches) = (queries.dim(1), queries.dim(2));
    let mut mixed = Vec::new();
    let at_once = queries_at_once(patches as usize, heads as usize);
    for start in (0..patches).step_by(at_once) {
        let some = slice_axis(queries, 2, start, patches.min(start + at_once as i32))?;
        let some = scaled_dot_product_attention(&some, keys, values, scale, None, None)?;
        if at_once < patches as usize {
            // Without this, the scores of all chunks would exist at the same time.
            some.eval()?;
        }
        mixed.push(some);
    }
    let mixed = concatenate(&mixed.iter().collect::<Vec<_>>(), 2)?;
    Ok(mixed.transpose_axes(&[0, 2, 1, 3])?.reshape(&[patches, -1])?)
}
