//! The token embeddings of a model, which may also be its head.

use mlx_rs::{Array, Dtype};

use super::linear::{Linear, Matrix};
use super::low_rank::LowRank;
use crate::error::Result;
use crate::weights::Weights;

/// A table of rows, `[vocabulary, width]`, with the change of an adapter, if any.
pub(super) struct Embedding {
    matrix: Matrix,
    low_rank: Option<LowRank>,
    /// The type of the rows.
    dtype: Dtype,
}

impl Embedding {
    /// Loads `{name}.weight` and the tensors that belong to it.
    pub(super) fn load(weights: &mut Weights, name: &str, rows: usize, width: usize) -> Result<Self> {
        let matrix = weights.shared(&[name], |weights| Matrix::load(weights, name, rows, width))?;
        let low_rank = LowRank::take_embedding(weights, name, rows, width)?;
        Ok(Self { matrix, low_rank, dtype: weights.dtype() })
    }

    /// Returns the rows of tokens `[R]`, `[R, width]`.
    pub(super) fn rows(&self, tokens: &Array) -> Result<Array> {
        let rows = self.matrix.rows(tokens, self.dtype)?;
        match &self.low_rank {
            Some(change) => change.added_to_rows(tokens, &rows),
            None => Ok(rows),
        }
    }

    /// Returns the tied head, `[.., width]` to `[.., vocabulary]`, with a bias of shape `[vocabulary]`.
    pub(super) fn head(&self, bias: Option<Array>) -> Result<Linear> {
        let head = Linear::new(self.matrix.clone(), bias);
        match &self.low_rank {
            Some(change) => head.with_adapter(change.of_head()?, self.dtype),
            None => Ok(head),
        }
    }
}
