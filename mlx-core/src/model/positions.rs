//! Where the rows of a pass are in their sequences.

use std::ops::Range;

use mlx_rs::{Array, Dtype};

use crate::array::slice_axis;
use crate::error::Result;

/// Positions, `[axes, T]` of i32. Text has one axis; a model that places pictures in height and width will have three.
pub(super) struct Positions(Array);

impl Positions {
    /// Those of text in `width` rows, from ranges of positions; padding is at 0.
    pub(super) fn of_text(ranges: impl Iterator<Item = Range<usize>>, width: usize) -> Self {
        let mut positions: Vec<i32> = ranges.flatten().map(|position| position as i32).collect();
        positions.resize(width, 0);
        Self(Array::from_slice(&positions, &[1, width as i32]))
    }

    /// `[T]` of i32, along the first axis.
    pub(super) fn rows(&self) -> Result<Array> {
        if self.0.dim(0) == 1 {
            return Ok(self.0.reshape(&[-1])?);
        }
        Ok(slice_axis(&self.0, 0, 0, 1)?.reshape(&[-1])?)
    }

    /// The same as `[T, 1, 1]` of f32.
    pub(super) fn column(&self) -> Result<Array> {
        Ok(self.rows()?.as_dtype(Dtype::Float32)?.reshape(&[-1, 1, 1])?)
    }
}
