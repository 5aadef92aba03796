//! Grouped-query attention over a cache (Ainslie et al., 2023, arXiv:2305.13245).

use mlx_rs::Array;
use mlx_rs::fast::{ScaledDotProductAttentionMask as Mask, scaled_dot_product_attention};
use mlx_rs::ops::{concatenate, matmul, multiply, split_equal};

use super::attention_temperature::{AttentionTemperature, AttentionTemperatureConfig};
use super::attention_weights::{AttentionWeights, band_mask};
use super::batch::{Batch, Layout};
use super::linear::{Linear, Part};
use super::qk_norm::{Heads, QkNorm, QkNormConfig};
use super::rope::RotaryTables;
use crate::array::{scalar_like, slice_axis};
use crate::cache::LayerState;
use crate::error::Result;
use crate::weights::Weights;

/// How a checkpoint lays out the projections of queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projections {
    /// `q_proj`, `k_proj`, `v_proj`.
    Apart,
    /// All queries, all keys, all values, in `qkv_proj`.
    InOne,
    /// In `qkv_proj`, for each key head: the queries that share it, the key, the value.
    ByKeyHead,
}

/// Which projections of an attention block have biases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AttentionBiases {
    /// Those of queries, keys and values.
    pub qkv: bool,
    /// That of the output.
    pub output: bool,
    /// Whether config.json leaves it open: there are those that the checkpoint has.
    pub as_found: bool,
}

/// The shape of an attention block.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_kv_heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Where queries, keys and values come from.
    pub projections: Projections,
    /// Which projections have biases.
    pub biases: AttentionBiases,
    /// Norms of queries and keys.
    pub norm: Option<QkNormConfig>,
    /// What the product of a query and a key is multiplied with.
    pub scale: f32,
    /// AttentionWeights are bent below this: `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Whether each head has a learned score that takes part in the softmax and leads nowhere.
    pub sinks: bool,
    /// Queries far into a text are made stronger.
    pub temperature: Option<AttentionTemperatureConfig>,
}

impl AttentionConfig {
    fn heads(&self) -> Heads {
        Heads { query: self.num_heads, key: self.num_kv_heads, size: self.head_dim }
    }
}

/// Queries, keys and values as one product, norms, rope, attention, output projection.
pub(crate) struct Attention {
    qkv: Linear,
    output: Linear,
    norm: Option<QkNorm>,
    norm_after_rope: bool,
    temperature: Option<AttentionTemperature>,
    weights_of: AttentionWeights,
    /// How many positions a row sees, itself included; all of them if `None`.
    sliding_window: Option<i32>,
    heads: Heads,
    scale: f32,
    /// Whether the device has a kernel for attention as a whole.
    fused: bool,
}

impl Attention {
    /// Takes the projections under `{name}.`, for a residual stream of width `hidden`. A row sees `sliding_window` positions, itself
    /// included, or all.
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: &AttentionConfig,
        sliding_window: Option<usize>,
    ) -> Result<Self> {
        let heads = config.heads();
        let query_width = heads.query * heads.size;
        let output = format!("{name}.o_proj");
        let output = [Part { name: &output, outputs: hidden }];
        let norm = config.norm.map(|norm| QkNorm::load(weights, name, norm, heads)).transpose()?;
        Ok(Self {
            qkv: load_qkv(weights, name, hidden, config)?,
            output: Linear::load(weights, &output, query_width, config.biases.output)?,
            norm,
            norm_after_rope: config.norm.is_some_and(|norm| norm.after_rope),
            temperature: config.temperature.map(AttentionTemperature::new),
            weights_of: AttentionWeights::load(weights, name, config)?,
            sliding_window: sliding_window.map(|sliding_window| sliding_window as i32),
            heads,
            scale: config.scale,
            fused: weights.backend().fused_attention && config.softcap.is_none(),
        })
    }

    /// `[R, hidden]` to the same shape. Queries and keys rotate by `rotary`; each run of the batch sees its own cache and nothing else.
    pub(crate) fn forward(
        &self,
        input: &Array,
        batch: &Batch,
        rotary: Option<&RotaryTables>,
        caches: &mut [&mut LayerState],
    ) -> Result<Array> {
        let rows = batch.rows() as i32;
        let Heads { query, key, size } = self.heads;
        let (queries, keys, size) = (query as i32, key as i32, size as i32);
        let all = queries + 2 * keys;
        let mut projected = self.qkv.forward(input)?;
        if let Some(norm) = &self.norm {
            projected = norm.widths(projected, self.heads)?;
        }
        let by_head = projected.reshape(&[rows, all, 1, size])?;
        // Queries and keys rotate together: one call for both.
        let rotated = self.rotated(slice_axis(&by_head, 1, 0, queries + keys)?, batch, rotary)?;
        let mut query = slice_axis(&rotated, 1, 0, queries)?;
        if let Some(temperature) = &self.temperature {
            query = temperature.forward(&query, batch.positions())?;
        }
        let key = slice_axis(&rotated, 1, queries, queries + keys)?;
        let value = slice_axis(&by_head, 1, queries + keys, all)?;
        let added = concatenate(&[key, value], 1)?;
        let mixed = match batch.layout() {
            Layout::OneRun => {
                let (query, added) = (query.swap_axes(0, 2)?, added.swap_axes(0, 2)?);
                self.attend_run(&query, &added, caches[0])?.swap_axes(1, 2)?
            }
            Layout::Rows(of_rows) => self.attend_rows(&query, &added, of_rows, caches)?,
        };
        self.output.forward(&mixed.reshape(&[rows, queries * size])?)
    }

    /// Queries and keys, `[R, H, 1, D]`, normalized and rotated.
    fn rotated(&self, mut heads: Array, batch: &Batch, rotary: Option<&RotaryTables>) -> Result<Array> {
        let (before, after) =
            if self.norm_after_rope { (None, self.norm.as_ref()) } else { (self.norm.as_ref(), None) };
        if let Some(norm) = before {
            heads = norm.each(heads)?;
        }
        if let Some(rotary) = rotary {
            heads = rotary.forward(&heads, batch.positions(), batch.beyond())?;
        }
        after.map_or(Ok(heads.clone()), |norm| norm.each(heads))
    }

    /// `[1, H, T, D]` over one cache.
    fn attend_run(&self, query: &Array, added: &Array, cache: &mut LayerState) -> Result<Array> {
        let (keys, values) = cache.append(added)?;
        if !self.fused {
            return self.attend_run_in_steps(query, &keys, &values);
        }
        let (rows, seen) = (query.dim(2), keys.dim(2));
        let band = self.sliding_window.filter(|&sliding_window| rows > 1 && seen > sliding_window);
        let band = band.map(|sliding_window| band_mask(rows, seen, sliding_window));
        let mask = match &band {
            Some(band) => Some(Mask::Array(band)),
            None => (rows > 1).then_some(Mask::Causal),
        };
        Ok(scaled_dot_product_attention(query, keys, values, self.scale, mask, self.weights_of.sinks())?)
    }

    /// The same where there is no kernel for attention as a whole.
    fn attend_run_in_steps(&self, query: &Array, keys: &Array, values: &Array) -> Result<Array> {
        let (num_heads, num_kv_heads) = (self.heads.query as i32, self.heads.key as i32);
        let (rows, seen, size) = (query.dim(2), keys.dim(2), self.heads.size as i32);
        let group = num_heads / num_kv_heads;
        // The query heads that share a key head are rows of one product.
        let query = multiply(query, scalar_like(self.scale, query)?)?;
        let query = query.reshape(&[1, num_kv_heads, group * rows, size])?;
        let weights_of = matmul(query, keys.swap_axes(2, 3)?)?;
        let weights_of = weights_of.reshape(&[1, num_kv_heads, group, rows, seen])?;
        let shares = self.weights_of.prefill_weights(&weights_of, self.sliding_window)?;
        let mixed = matmul(shares.reshape(&[1, num_kv_heads, group * rows, seen])?, values)?;
        Ok(mixed.reshape(&[1, num_heads, rows, size])?)
    }

    /// `[R, H, 1, D]`, row by row, each over its own cache up to its own position: what a row becomes does not depend on the
    /// others, nor on how many there are. Row `i` belongs to cache `of_rows[i]`; the rest is padding.
    fn attend_rows(
        &self,
        query: &Array,
        added: &Array,
        of_rows: &[usize],
        caches: &mut [&mut LayerState],
    ) -> Result<Array> {
        // The query heads that share a key head are the rows of one product.
        let key = self.heads.key as i32;
        let group = [query.dim(0), key, self.heads.query as i32 / key, self.heads.size as i32];
        let query = query.reshape(&group)?;
        let query = if self.fused { query } else { multiply(&query, scalar_like(self.scale, &query)?)? };
        // One operation that gives all rows, instead of one for each.
        let rows = query.dim(0);
        let (mut queries, added) = (split_equal(&query, rows, 0)?, split_equal(added, rows, 0)?);
        let padding = queries.split_off(of_rows.len());
        let mut mixed = Vec::with_capacity(rows as usize);
        for ((query, added), &cache) in queries.iter().zip(&added).zip(of_rows) {
            let (keys, values) = caches[cache].append(added)?;
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
            let shape = [1, self.heads.query as i32, 1, self.heads.size as i32];
            let num_heads = query.reshape(&shape)?;
            let sinks = self.weights_of.sinks();
            let mixed = scaled_dot_product_attention(num_heads, keys, values, self.scale, None, sinks)?;
            return Ok(mixed.reshape(query.shape())?);
        }
        // Without a fused kernel the call above becomes twice as many operations.
        let weights_of = matmul(query, keys.swap_axes(2, 3)?)?;
        Ok(matmul(self.weights_of.shares(&weights_of)?, values)?)
    }
}

/// Queries above keys above values, whatever the checkpoint's own order.
fn load_qkv(weights: &mut Weights, name: &str, hidden: usize, config: &AttentionConfig) -> Result<Linear> {
    let Heads { query, key, size } = config.heads();
    let names = ["q_proj", "k_proj", "v_proj", "qkv_proj"].map(|part| format!("{name}.{part}"));
    if config.projections == Projections::Apart {
        let widths = [query * size, key * size, key * size];
        let parts: Vec<Part> =
            names.iter().zip(widths).map(|(name, outputs)| Part { name, outputs }).collect();
        return Linear::load(weights, &parts, hidden, config.biases.qkv);
    }
    let part = Part { name: &names[3], outputs: (query + 2 * key) * size };
    if config.projections == Projections::InOne {
        return Linear::load(weights, &[part], hidden, config.biases.qkv);
    }
    // Each key head has a block of `group` query heads, itself and its value.
    let group = query / key;
    let block = |key: usize, place: usize| key * (group + 2) + place;
    let queries = (0..query).map(|head| block(head / group, head % group));
    let heads = queries
        .chain((0..key).map(|head| block(head, group)))
        .chain((0..key).map(|head| block(head, group + 1)));
    let rows: Vec<i32> =
        heads.flat_map(|head| (head * size..(head + 1) * size).map(|row| row as i32)).collect();
    Linear::load_reordered(weights, &part, hidden, config.biases.qkv, &rows)
}
