//! Pooling of hidden states into vectors, for all texts of a pass at once.

use std::ops::Range;

use mlx_rs::ops::{add, concatenate, matmul};
use mlx_rs::{Array, Dtype};

use super::masks::except;
use crate::error::Result;

/// A vector that is pooled from the hidden states of a text.
#[derive(Debug, Clone, PartialEq)]
pub enum PoolRow {
    /// The sum of the states times these factors, one for each token.
    Sum(Vec<f32>),
    /// The maximum of each element over a range of tokens.
    Max(Range<usize>),
}

/// Pools `[texts, length, hidden]`. Returns `[texts, rows, hidden]` of f32, where each text has as many rows as the first one.
pub(super) fn pooled(hidden: &Array, texts: &[Vec<PoolRow>]) -> Result<Array> {
    let length = hidden.dim(1) as usize;
    let hidden = hidden.as_dtype(Dtype::Float32)?;
    let rows = texts.first().map_or(0, Vec::len);
    let mut vectors = Vec::new();
    for row in 0..rows {
        let (mut factors, mut ranges) = (Vec::with_capacity(texts.len() * length), Vec::new());
        for text in texts {
            match &text[row] {
                PoolRow::Sum(weights) => {
                    factors.extend_from_slice(weights);
                    factors.resize(factors.len().next_multiple_of(length), 0.0);
                }
                PoolRow::Max(range) => ranges.push(range.clone()),
            }
        }
        vectors.push(if ranges.is_empty() {
            matmul(Array::from_slice(&factors, &[texts.len() as i32, 1, length as i32]), &hidden)?
        } else {
            add(&hidden, except(&ranges, length))?.max_axis(1, true)?
        });
    }
    match vectors.as_slice() {
        [only] => Ok(only.clone()),
        all => Ok(concatenate(&all.iter().collect::<Vec<_>>(), 1)?),
    }
}
