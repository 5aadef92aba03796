//! The table of a model's tokens, which may also be its head.

use mlx_rs::{Array, Dtype};

use super::linear::{Linear, Matrix};
use super::low_rank::LowRank;
use crate::error::Result;
use crate::weights::Weights;

/// Rows `[vocabulary, width]`, as an adapter may change them.
pub(super) struct Embedding {
    matrix: Matrix,
    low_rank: Option<LowRank>,
    /// The type of rows.
    dtype: Dtype,
}

impl Embedding {
    /// Takes `{name}.weight` with what belongs to it.
    pub(super) fn load(weights: &mut Weights, name: &str, rows: usize, width: usize) -> Result<Self> {
        let matrix = weights.shared(&[name], |weights| Matrix::load(weights, name, rows, width))?;
        let low_rank = LowRank::take_embedding(weights, name, rows, width)?;
        Ok(Self { matrix, low_rank, dtype: weights.dtype() })
    }

    /// The rows of tokens `[R]`, `[R, width]`.
    pub(super) fn rows(&self, tokens: &Array) -> Result<Array> {
        let rows = self.matrix.rows(tokens, self.dtype)?;
        match &self.low_rank {
            Some(change) => change.added_to_rows(tokens, &rows),
            None => Ok(rows),
        }
    }

    /// The head that it is, `[.., width]` to `[.., vocabulary]`, with this bias, `[vocabulary]`.
    pub(super) fn head(&self, bias: Option<Array>) -> Result<Linear> {
        let head = Linear::new(self.matrix.clone(), bias);
        match &self.low_rank {
            Some(change) => head.changed(change.of_head()?, self.dtype),
            None => Ok(head),
        }
    }
}
