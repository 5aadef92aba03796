//! Where the rows of a pass are in their sequences.

use mlx_rs::{Array, Dtype};

use super::batch::Span;
use crate::array::slice_axis;
use crate::error::Result;

/// Positions, `[axes, T]` of i32. Text has one axis; a model that places pictures in height and width will have three.
pub(super) struct Positions(Array);

impl Positions {
    /// Those of text in `width` rows: padding is at 0.
    pub(super) fn of_spans(spans: &[Span], width: usize) -> Self {
        let mut positions: Vec<i32> =
            spans.iter().flat_map(|span| span.start as i32..(span.start + span.len) as i32).collect();
        positions.resize(width, 0);
        Self(Array::from_slice(&positions, &[1, width as i32]))
    }

    /// `[T]` of i32, along the first axis.
    pub(super) fn rows(&self) -> Result<Array> {
        Ok(slice_axis(&self.0, 0, 0, 1)?.reshape(&[-1])?)
    }

    /// The same as `[T, 1, 1]` of f32.
    pub(super) fn column(&self) -> Result<Array> {
        Ok(self.rows()?.as_dtype(Dtype::Float32)?.reshape(&[-1, 1, 1])?)
    }
}
