//! Grouped-query attention over a cache (Ainslie et al., 2023, arXiv:2305.13245).

use mlx_rs::Array;
use mlx_rs::fast::{ScaledDotProductAttentionMask as Mask, scaled_dot_product_attention};
use mlx_rs::ops::concatenate;

use super::batch::{Batch, Layout};
use super::linear::{Linear, Part};
use super::rope::{Rope, RopeConfig};
use crate::array::slice_axis;
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
            Layout::Rows => projected.reshape(&[rows, heads, 1, self.head_size])?,
        };
        // Queries and keys turn together: one rope call for both.
        let turned = self.rope.forward(&slice_axis(&by_head, 1, 0, queries + keys)?, batch.positions())?;
        let query = slice_axis(&turned, 1, 0, queries)?;
        let key = slice_axis(&turned, 1, queries, queries + keys)?;
        let value = slice_axis(&by_head, 1, queries + keys, heads)?;
        let mixed = match batch.layout() {
            Layout::OneRun => self.attend(&query, &key, &value, caches[0])?.swap_axes(1, 2)?,
            Layout::Rows => self.attend_rows(&query, &key, &value, caches)?,
        };
        self.output.forward(&mixed.reshape(&[rows, queries * self.head_size])?)
    }

    /// `[1, H, T, D]` over one cache.
    fn attend(&self, query: &Array, key: &Array, value: &Array, cache: &mut LayerCache) -> Result<Array> {
        let (keys, values) = cache.update(key, value)?;
        let mask = (query.dim(2) > 1).then_some(Mask::Causal);
        Ok(scaled_dot_product_attention(query, keys, values, self.scale, mask, None)?)
    }

    /// `[R, H, 1, D]`, row by row, so that a row cannot see its neighbours.
    fn attend_rows(
        &self,
        query: &Array,
        key: &Array,
        value: &Array,
        caches: &mut [&mut LayerCache],
    ) -> Result<Array> {
        let mut mixed = Vec::with_capacity(caches.len());
        for (row, cache) in (0i32..).zip(caches) {
            let of_row = |array| slice_axis(array, 0, row, row + 1);
            mixed.push(self.attend(&of_row(query)?, &of_row(key)?, &of_row(value)?, cache)?);
        }
        if let [only] = mixed.as_slice() {
            return Ok(only.clone());
        }
        Ok(concatenate(&mixed, 0)?)
    }
}
