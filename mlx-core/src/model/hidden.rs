//! Rows of hidden states: of a pass, which an MTP head reads, or of a picture.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use crate::array::slice_axis;
use crate::error::Result;

/// Hidden states of some rows, `[rows, hidden]`: from a pass after the last norm, or from a vision tower.
#[derive(Clone)]
pub(crate) struct Hidden(Array);

impl Hidden {
    /// Wraps rows of [`Model::normalized`](super::Model::normalized) or of a tower.
    pub(crate) fn new(rows: Array) -> Self {
        Self(rows)
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.0.shape()[0] as usize
    }

    /// Returns some of the rows.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Result<Self> {
        slice_axis(&self.0, 0, rows.start as i32, rows.end as i32).map(Self)
    }

    /// Concatenates one or more groups of rows.
    pub(crate) fn joined<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Result<Self> {
        let parts: Vec<&Array> = parts.into_iter().map(|part| &part.0).collect();
        Ok(Self(match parts.as_slice() {
            [only] => (*only).clone(),
            parts => concatenate(parts, 0)?,
        }))
    }

    /// Waits until the rows are computed.
    pub(crate) fn wait(&self) -> Result<()> {
        Ok(self.0.eval()?)
    }

    /// Returns the rows as an array.
    pub(crate) fn into_array(self) -> Array {
        self.0
    }
}

#[cfg(test)]
impl Hidden {
    /// Creates rows of one number each.
    pub(crate) fn of_numbers(numbers: &[f32]) -> Self {
        Self(Array::from_slice(numbers, &[numbers.len() as i32, 1]))
    }
}
