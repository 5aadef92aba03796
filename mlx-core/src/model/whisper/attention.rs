//! Attention of Whisper's layers: to the same sequence, or from the decoder to the encoder's output.

use mlx_rs::fast::{ScaledDotProductAttentionMask as Mask, scaled_dot_product_attention};
use mlx_rs::ops::{concatenate, divide, matmul, multiply, softmax_axis, square, subtract};
use mlx_rs::{Array, Dtype};

use crate::array::{scalar_like, slice_axis};
use crate::error::Result;
use crate::model::linear::{Linear, Part};
use crate::weights::Weights;

/// Projections of queries, keys and values, and of the result. Only keys have no bias.
pub(super) struct WhisperAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    heads: i32,
    scale: f32,
}

/// Keys and values, each `[1, heads, length, width of a head]`.
#[derive(Clone)]
pub(super) struct KeysValues {
    keys: Array,
    values: Array,
}

impl KeysValues {
    /// Returns the number of positions.
    pub(super) fn len(&self) -> usize {
        self.keys.dim(2) as usize
    }

    /// Returns both arrays.
    pub(super) fn arrays(&self) -> [&Array; 2] {
        [&self.keys, &self.values]
    }

    /// Returns the positions of `self`, then those of `more`.
    fn followed_by(&self, more: &Self) -> Result<Self> {
        Ok(Self {
            keys: concatenate(&[&self.keys, &more.keys], 2)?,
            values: concatenate(&[&self.values, &more.values], 2)?,
        })
    }
}

impl WhisperAttention {
    pub(super) fn load(weights: &mut Weights, name: &str, width: usize, heads: usize) -> Result<Self> {
        let mut linear = |part: &str, bias: bool| {
            let name = format!("{name}.{part}");
            Linear::load(weights, &[Part { name: &name, outputs: width }], width, bias)
        };
        Ok(Self {
            query: linear("q_proj", true)?,
            key: linear("k_proj", false)?,
            value: linear("v_proj", true)?,
            output: linear("out_proj", true)?,
            heads: heads as i32,
            scale: ((width / heads) as f32).powf(-0.5),
        })
    }

    /// Returns the keys and values of rows, `[length, hidden]`.
    pub(super) fn keys_values(&self, rows: &Array) -> Result<KeysValues> {
        let keys = self.by_head(&self.key.forward(rows)?)?;
        Ok(KeysValues { keys, values: self.by_head(&self.value.forward(rows)?)? })
    }

    /// Lets every row, `[length, hidden]`, attend to these keys and values.
    pub(super) fn attend(&self, rows: &Array, to: &KeysValues) -> Result<Array> {
        self.attend_with(rows, to, None)
    }

    /// Lets every row attend to the earlier positions of `past`, to the rows before it, and to itself. Extends `past`.
    pub(super) fn attend_causally(&self, rows: &Array, past: &mut Option<KeysValues>) -> Result<Array> {
        let new = self.keys_values(rows)?;
        let all = match past.take() {
            Some(past) => past.followed_by(&new)?,
            None => new,
        };
        let mask = (rows.dim(0) > 1).then_some(Mask::Causal);
        let attended = self.attend_with(rows, &all, mask)?;
        *past = Some(all);
        Ok(attended)
    }

    fn attend_with(&self, rows: &Array, to: &KeysValues, mask: Option<Mask>) -> Result<Array> {
        let queries = self.by_head(&self.query.forward(rows)?)?;
        let mixed = scaled_dot_product_attention(&queries, &to.keys, &to.values, self.scale, mask, None)?;
        self.output.forward(&mixed.swap_axes(1, 2)?.reshape(&[rows.dim(0), -1])?)
    }

    /// Returns the weights of these heads for every row at the first `positions`, `[heads, rows, positions]`. They are normed over the rows.
    pub(super) fn normed_weights(
        &self,
        rows: &Array,
        to: &KeysValues,
        (heads, positions): (&[i32], i32),
    ) -> Result<Array> {
        let heads = Array::from_slice(heads, &[heads.len() as i32]);
        let queries = self.by_head(&self.query.forward(rows)?)?.take_axis(&heads, 1)?;
        let keys = slice_axis(&to.keys.take_axis(&heads, 1)?, 2, 0, positions)?;
        let scores = matmul(&queries, &keys.swap_axes(2, 3)?)?.as_dtype(Dtype::Float32)?;
        let scores = multiply(&scores, scalar_like(self.scale, &scores)?)?;
        let weights = softmax_axis(scores.squeeze_axes(&[0])?, -1, true)?;
        let centred = subtract(&weights, weights.mean_axis(1, true)?)?;
        let deviation = square(&centred)?.mean_axis(1, true)?.sqrt()?;
        Ok(divide(centred, deviation)?)
    }

    fn by_head(&self, rows: &Array) -> Result<Array> {
        Ok(rows.reshape(&[1, rows.dim(0), self.heads, -1])?.swap_axes(1, 2)?)
    }
}
