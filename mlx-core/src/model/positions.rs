//! The positions of the rows of a pass in their sequences.

use std::ops::Range;

use mlx_rs::{Array, Dtype};

use crate::array::slice_axis;
use crate::error::Result;

/// Positions, `[axes, T]` of i32. Text has one axis. Models that place pictures by time, height and width have three.
pub(super) struct Positions(Array);

impl Positions {
    /// Returns the positions of text in `width` rows, from ranges of positions. Padding is at 0.
    pub(super) fn of_text(ranges: impl Iterator<Item = Range<usize>>, width: usize) -> Self {
        Self::of_shifted(ranges.map(|range| (range, 0)), width)
    }

    /// Like [`of_text`](Self::of_text), but adds a shift to each range.
    pub(super) fn of_shifted(ranges: impl Iterator<Item = (Range<usize>, i32)>, width: usize) -> Self {
        let shifted = ranges.flat_map(|(range, shift)| range.map(move |position| position as i32 + shift));
        let mut positions: Vec<i32> = shifted.collect();
        positions.resize(width, 0);
        Self(Array::from_slice(&positions, &[1, width as i32]))
    }

    /// Returns the positions of rows in time, height and width.
    pub(super) fn of_grid(rows: &[[i32; 3]]) -> Self {
        let axis = |axis: usize| rows.iter().map(move |row| row[axis]);
        let positions: Vec<i32> = (0..3).flat_map(axis).collect();
        Self(Array::from_slice(&positions, &[3, rows.len() as i32]))
    }

    /// Returns true if rows have positions in time, height and width.
    pub(super) fn have_axes(&self) -> bool {
        self.0.dim(0) > 1
    }

    /// Returns all axes: `[T]` of i32, or `[3, T]`.
    pub(super) fn all(&self) -> Result<Array> {
        if self.have_axes() { Ok(self.0.clone()) } else { self.rows() }
    }

    /// Returns the first axis, `[T]` of i32.
    pub(super) fn rows(&self) -> Result<Array> {
        if self.0.dim(0) == 1 {
            return Ok(self.0.reshape(&[-1])?);
        }
        Ok(slice_axis(&self.0, 0, 0, 1)?.reshape(&[-1])?)
    }

    /// Returns the first axis as `[T, 1, 1]` of f32.
    pub(super) fn column(&self) -> Result<Array> {
        Ok(self.rows()?.as_dtype(Dtype::Float32)?.reshape(&[-1, 1, 1])?)
    }
}
