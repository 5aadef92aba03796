//! Attention of a row to itself and to the rows shortly before it, with a learned bias by distance (Dai et al., 2019, arXiv:1901.02860). Rows
//! are computed in blocks, and a block sees one block before it.

use std::f64::consts::{E, LN_2};

use mlx_rs::ops::{add, concatenate, divide, logaddexp, matmul, multiply, pad, softmax_axis, tanh};
use mlx_rs::{Array, Dtype};

use super::config::AudioConfig;
use crate::array::slice_axis;
use crate::error::Result;
use crate::model::clipped_linear::ClippedLinear;
use crate::model::linear::{Linear, Part};
use crate::weights::Weights;

/// The score of a row that is not seen. Other scores are bounded, so its weight is 0.
const UNSEEN: f32 = -1e9;

/// The blocks of a clip's rows.
pub(super) struct Blocks {
    rows: i32,
    /// The rows of a block.
    size: i32,
    count: i32,
    /// 0 where a query sees a key, and [`UNSEEN`] elsewhere: `[blocks, 1, queries, keys]`.
    mask: Array,
}

impl Blocks {
    pub(super) fn new(rows: i32, size: i32) -> Self {
        let count = (rows + size - 1) / size;
        let mut mask = Vec::with_capacity((count * size * 2 * size) as usize);
        for query in 0..count * size {
            let first_key = query / size * size - size;
            mask.extend((first_key..first_key + 2 * size).map(|key| {
                let is_seen = key >= 0 && key < rows && (0..size).contains(&(query - key));
                if is_seen { 0.0 } else { UNSEEN }
            }));
        }
        Self { rows, size, count, mask: Array::from_slice(&mask, &[count, 1, size, 2 * size]) }
    }

    /// Maps `[rows, heads, width]` to blocks, `[blocks, heads, size, width]`. Rows of zeros complete the last one.
    fn queries(&self, rows: &Array) -> Result<Array> {
        let padded = pad(rows, &[(0, self.count * self.size - self.rows), (0, 0), (0, 0)], None, None)?;
        self.heads_first(&padded)
    }

    /// Maps `[rows, heads, width]` to the rows that each block sees, `[blocks, heads, 2 * size, width]`.
    fn context(&self, rows: &Array) -> Result<Array> {
        let (size, all) = (self.size, self.count * self.size);
        let padded = pad(rows, &[(size, all - self.rows), (0, 0), (0, 0)], None, None)?;
        let (before, own) = (slice_axis(&padded, 0, 0, all)?, slice_axis(&padded, 0, size, size + all)?);
        Ok(concatenate(&[&self.heads_first(&before)?, &self.heads_first(&own)?], 2)?)
    }

    fn heads_first(&self, rows: &Array) -> Result<Array> {
        let (heads, width) = (rows.dim(1), rows.dim(2));
        Ok(rows.reshape(&[self.count, self.size, heads, width])?.transpose_axes(&[0, 2, 1, 3])?)
    }

    /// Moves scores by distance to the keys at these distances. Distances are in the last axis, from `size` to 0. The other keys get values
    /// that the mask hides.
    fn by_key(&self, scores: &Array) -> Result<Array> {
        let (size, heads) = (self.size, scores.dim(1));
        let rows = pad(scores, &[(0, 0), (0, 0), (0, 0), (0, size)], None, None)?;
        // A row is one number longer than the keys, so the next query begins one key later.
        let flat = rows.reshape(&[self.count, heads, size * (2 * size + 1)])?;
        let skewed = slice_axis(&flat, 2, 0, size * 2 * size)?;
        Ok(skewed.reshape(&[self.count, heads, size, 2 * size])?)
    }
}

/// Attention with its matrices.
pub(super) struct LocalAttention {
    /// The projections to queries, keys and values.
    projections: [ClippedLinear; 3],
    post: ClippedLinear,
    /// The projected encodings of the distances from the size of a block to 0: `[heads, head_dim, distances]` of f32.
    distances: Array,
    /// The factor of the queries, `[head_dim]` of f32.
    query_scale: Array,
    heads: i32,
    logit_cap: f32,
}

impl LocalAttention {
    pub(super) fn load(weights: &mut Weights, name: &str, config: &AudioConfig) -> Result<Self> {
        let (hidden, heads) = (config.hidden_size, config.num_attention_heads);
        let head_dim = hidden / heads;
        let mut linear = |part: &str| {
            let name = format!("{name}.{part}");
            ClippedLinear::load(weights, &name, hidden, hidden, config.use_clipped_linears)
        };
        let projections = [linear("q_proj")?, linear("k_proj")?, linear("v_proj")?];
        let post = linear("post")?;
        let relative = Part { name: &format!("{name}.relative_k_proj"), outputs: hidden };
        let relative = Linear::load(weights, &[relative], hidden, false)?;
        let encodings = encodings(config.attention_chunk_size, hidden).as_dtype(weights.dtype())?;
        let shape = [config.attention_chunk_size as i32 + 1, heads as i32, head_dim as i32];
        let distances = relative.forward(&encodings)?.as_dtype(Dtype::Float32)?.reshape(&shape)?;
        let distances = distances.transpose_axes(&[1, 2, 0])?.contiguous()?;
        let learned = weights.take(&format!("{name}.per_dim_scale"), &[head_dim])?;
        let factor = (head_dim as f64).sqrt().recip() / LN_2;
        let softplus = logaddexp(learned.as_dtype(Dtype::Float32)?, Array::from_f32(0.0))?;
        let query_scale = multiply(softplus, Array::from_f32(factor as f32))?;
        for computed in [&distances, &query_scale] {
            computed.eval()?;
        }
        let (heads, logit_cap) = (heads as i32, config.attention_logit_cap);
        Ok(Self { projections, post, distances, query_scale, heads, logit_cap })
    }

    /// Maps `[rows, hidden]` to the same shape.
    pub(super) fn forward(&self, input: &Array, blocks: &Blocks) -> Result<Array> {
        let (rows, hidden) = (input.dim(0), input.dim(1));
        let project = |projection: &ClippedLinear| -> Result<Array> {
            let all = projection.forward(input)?.as_dtype(Dtype::Float32)?;
            Ok(all.reshape(&[rows, self.heads, hidden / self.heads])?)
        };
        let [queries, keys, values] = self.projections.each_ref().map(project);
        let key_scale = Array::from_f32(((1.0 + E).ln() / LN_2) as f32);
        let queries = blocks.queries(&multiply(queries?, &self.query_scale)?)?;
        let keys = blocks.context(&multiply(keys?, key_scale)?)?;
        let by_content = matmul(&queries, keys.swap_axes(2, 3)?)?;
        let by_distance = blocks.by_key(&matmul(&queries, &self.distances)?)?;
        let cap = Array::from_f32(self.logit_cap);
        let scores = multiply(tanh(divide(add(by_content, by_distance)?, &cap)?)?, &cap)?;
        let weights = softmax_axis(add(scores, &blocks.mask)?, -1, None)?;
        let mixed = matmul(weights, blocks.context(&values?)?)?;
        let mixed = mixed.transpose_axes(&[0, 2, 1, 3])?.reshape(&[blocks.count * blocks.size, hidden])?;
        self.post.forward(&slice_axis(&mixed, 0, 0, rows)?.as_dtype(input.dtype())?)
    }
}

/// Returns the encodings of the distances from `farthest` to 0, `[distances, width]`: sines, then cosines.
fn encodings(farthest: usize, width: usize) -> Array {
    let half = width / 2;
    let step = 10_000f64.ln() / (half.max(2) - 1) as f64;
    let angle = |distance: usize, place: usize| distance as f64 * (-step * place as f64).exp();
    let row = |distance: usize| {
        let sines = (0..half).map(move |place| angle(distance, place).sin() as f32);
        sines.chain((0..half).map(move |place| angle(distance, place).cos() as f32))
    };
    let all: Vec<f32> = (0..=farthest).rev().flat_map(row).collect();
    Array::from_slice(&all, &[farthest as i32 + 1, width as i32])
}
