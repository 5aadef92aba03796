//! Attention in which every token of a text sees every other, without a state.

use mlx_rs::Array;
use mlx_rs::fast::{ScaledDotProductAttentionMask as Mask, scaled_dot_product_attention};
use mlx_rs::ops::concatenate;

use super::{Attention, Projected};
use crate::array::slice_axis;
use crate::error::{Error, Result};
use crate::model::rope::Rotary;

/// The texts of a pass, padded to one length.
#[derive(Debug, Clone, Copy)]
pub(in crate::model) struct TextShape {
    pub(in crate::model) texts: i32,
    pub(in crate::model) length: i32,
    /// The number of tokens whose scores exist at the same time, if the device writes scores.
    pub(in crate::model) queries_at_once: i32,
}

impl Attention {
    /// Maps `[texts * length, hidden]` to the same shape. `mask` has the shape `[texts or 1, heads or 1, length or 1, length]`: true for
    /// keys that a token sees, or numbers to add to its scores.
    pub(in crate::model) fn forward_two_way(
        &self,
        input: &Array,
        shape: TextShape,
        rotary: Option<&Rotary>,
        mask: Option<&Array>,
    ) -> Result<Array> {
        let (rows, size) = (input.dim(0), self.core.heads.size as i32);
        let Projected { query, added, .. } = self.project(input, rotary)?;
        let [key, values] = added.ok_or_else(|| Error::Internal("an encoder's layer has no keys".into()))?;
        let of_texts = |rows: &Array| -> Result<Array> {
            Ok(rows.reshape(&[shape.texts, shape.length, -1, size])?.swap_axes(1, 2)?)
        };
        let (query, key, values) = (of_texts(&query)?, of_texts(&key)?, of_texts(&values)?);
        let attend = |query: &Array, mask: Option<&Array>| {
            scaled_dot_product_attention(query, &key, &values, self.core.scale, mask.map(Mask::Array), None)
        };
        let mixed = if shape.length <= shape.queries_at_once {
            attend(&query, mask)?
        } else {
            let mut parts = Vec::new();
            for start in (0..shape.length).step_by(shape.queries_at_once.max(1) as usize) {
                let end = shape.length.min(start + shape.queries_at_once.max(1));
                let of_part = |mask: &Array| -> Result<Array> {
                    if mask.dim(2) == 1 { Ok(mask.clone()) } else { slice_axis(mask, 2, start, end) }
                };
                let mask = mask.map(of_part).transpose()?;
                let part = attend(&slice_axis(&query, 2, start, end)?, mask.as_ref())?;
                // Without this, the scores of all parts would exist at the same time.
                part.eval()?;
                parts.push(part);
            }
            concatenate(&parts.iter().collect::<Vec<_>>(), 2)?
        };
        self.output.forward(&mixed.swap_axes(1, 2)?.reshape(&[rows, -1])?)
    }
}
