//! Grouped-query attention over a cache (Ainslie et al., 2023, arXiv:2305.13245).

use mlx_rs::Array;
use mlx_rs::fast::{ScaledDotProductAttentionMask as Mask, scaled_dot_product_attention};
use mlx_rs::ops::{concatenate, matmul, multiply, softmax_axis, split_equal};

use super::batch::{Batch, Layout};
use super::linear::{Linear, Part};
use super::rope::{Rope, RopeConfig};
use crate::array::{on_gpu, slice_axis};
use crate::cache::LayerCache;
use crate::error::Result;
use crate::weights::Weights;

/// The shape of an attention block.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub query_heads: usize,
    /// Key and value heads; divides the query heads.
    pub key_heads: usize,
    /// Dimensions of a head.
    pub head_size: usize,
    /// Rotary embedding of queries and keys.
    pub rope: RopeConfig,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub output_bias: bool,
}

/// Queries, keys and values as one product, rope, attention, output projection.
pub(crate) struct Attention {
    qkv: Linear,
    output: Linear,
    rope: Rope,
    query_heads: i32,
    key_heads: i32,
    head_size: i32,
    scale: f32,
    /// Whether the device has a kernel for attention as a whole.
    fused: bool,
}

impl Attention {
    /// Takes `{name}.q_proj`, `k_proj`, `v_proj` and `o_proj`, for a residual stream of width `hidden`.
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: &AttentionConfig,
    ) -> Result<Self> {
        let query_width = config.query_heads * config.head_size;
        let key_width = config.key_heads * config.head_size;
        let names = ["q_proj", "k_proj", "v_proj", "o_proj"].map(|part| format!("{name}.{part}"));
        let parts = [
            Part { name: &names[0], outputs: query_width },
            Part { name: &names[1], outputs: key_width },
            Part { name: &names[2], outputs: key_width },
        ];
        let output = [Part { name: &names[3], outputs: hidden }];
        Ok(Self {
            qkv: Linear::load(weights, &parts, hidden, config.qkv_bias)?,
            output: Linear::load(weights, &output, query_width, config.output_bias)?,
            rope: Rope::new(&config.rope),
            query_heads: config.query_heads as i32,
            key_heads: config.key_heads as i32,
            head_size: config.head_size as i32,
            scale: (config.head_size as f32).sqrt().recip(),
            fused: on_gpu()?,
        })
    }

    /// `[R, hidden]` to the same shape. Each run of the batch sees its own cache and nothing else.
    pub(crate) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        caches: &mut [&mut LayerCache],
    ) -> Result<Array> {
        let rows = batch.rows() as i32;
        let (queries, keys, heads) =
            (self.query_heads, self.key_heads, self.query_heads + 2 * self.key_heads);
        let projected = self.qkv.forward(input)?;
        let by_head = match batch.layout() {
            Layout::OneRun => projected.reshape(&[1, rows, heads, self.head_size])?.swap_axes(1, 2)?,
            Layout::Rows(_) => projected.reshape(&[rows, heads, 1, self.head_size])?,
        };
        // Queries and keys turn together: one rope call for both.
        let turned = self.rope.forward(&slice_axis(&by_head, 1, 0, queries + keys)?, batch.positions())?;
        let query = slice_axis(&turned, 1, 0, queries)?;
        let key = slice_axis(&turned, 1, queries, queries + keys)?;
        let value = slice_axis(&by_head, 1, queries + keys, heads)?;
        let added = concatenate(&[key, value], 1)?;
        let mixed = match batch.layout() {
            Layout::OneRun => self.attend_run(&query, &added, caches[0])?.swap_axes(1, 2)?,
            Layout::Rows(of_rows) => self.attend_rows(&query, &added, of_rows, caches)?,
        };
        self.output.forward(&mixed.reshape(&[rows, queries * self.head_size])?)
    }

    /// `[1, H, T, D]` over one cache.
    fn attend_run(&self, query: &Array, added: &Array, cache: &mut LayerCache) -> Result<Array> {
        let (keys, values) = cache.update(added)?;
        let mask = (query.dim(2) > 1).then_some(Mask::Causal);
        Ok(scaled_dot_product_attention(query, keys, values, self.scale, mask, None)?)
    }

    /// `[R, H, 1, D]`, row by row, each over its own cache up to its own position: what a row becomes does not depend on the
    /// others, nor on how many there are. Row `i` belongs to cache `of_rows[i]`; the rest is padding.
    fn attend_rows(
        &self,
        query: &Array,
        added: &Array,
        of_rows: &[usize],
        caches: &mut [&mut LayerCache],
    ) -> Result<Array> {
        // The query heads that share a key head are the rows of one product.
        let group = [query.dim(0), self.key_heads, self.query_heads / self.key_heads, self.head_size];
        let query = query.reshape(&group)?;
        let query = if self.fused { query } else { multiply(query, Array::from_f32(self.scale))? };
        // One operation that gives all rows, instead of one for each.
        let rows = query.dim(0);
        let (mut queries, added) = (split_equal(&query, rows, 0)?, split_equal(added, rows, 0)?);
        let padding = queries.split_off(of_rows.len());
        let mut mixed = Vec::with_capacity(rows as usize);
        for ((query, added), &cache) in queries.iter().zip(&added).zip(of_rows) {
            let (keys, values) = caches[cache].update(added)?;
            mixed.push(self.attend_row(query, &keys, &values)?);
        }
        mixed.extend(padding);
        if let [only] = mixed.as_slice() {
            return Ok(only.clone());
        }
        Ok(concatenate(&mixed, 0)?)
    }

    /// One row, `[1, key heads, group, D]`, over all of `keys` and `values`.
    fn attend_row(&self, query: &Array, keys: &Array, values: &Array) -> Result<Array> {
        if self.fused {
            let shape = [1, self.query_heads, 1, self.head_size];
            let mixed =
                scaled_dot_product_attention(query.reshape(&shape)?, keys, values, self.scale, None, None)?;
            return Ok(mixed.reshape(query.shape())?);
        }
        // Without a fused kernel the call above becomes twice as many operations.
        let scores = matmul(query, keys.swap_axes(2, 3)?)?;
        Ok(matmul(softmax_axis(scores, -1, true)?, values)?)
    }
}
