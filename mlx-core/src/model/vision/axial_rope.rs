//! Rope in two dimensions: some numbers of a head rotate by the row of a patch, the others by its column.

use mlx_rs::ops::{add, concatenate, multiply, negative};
use mlx_rs::{Array, Dtype};

use crate::array::slice_axis;
use crate::error::Result;

/// The rotations of all patches of a picture.
pub(super) struct AxialRope {
    /// `[patches, head_dim]`
    cos: Array,
    sin: Array,
    /// The number of separately rotated parts of a head. In each, the first half forms pairs with the second.
    parts: i32,
}

impl AxialRope {
    /// Creates the rotations of a grid of rows and columns. `head_dim` must be a multiple of 4. In each half of a head, the first half rotates
    /// by the row, the second by the column. Rows use the frequencies with even index. Columns use the same, or with `columns_between` the
    /// frequencies with odd index, which lie between.
    pub(super) fn new(
        grid: (usize, usize),
        head_dim: usize,
        theta: f32,
        columns_between: bool,
        dtype: Dtype,
    ) -> Result<Self> {
        let of = |place: usize, odd: usize| {
            (0..head_dim / 4).map(move |index| place as f32 * frequency(2 * index + odd, head_dim, theta))
        };
        Self::of(grid, head_dim, 1, dtype, |row, column| {
            let both: Vec<f32> = of(row, 0).chain(of(column, usize::from(columns_between))).collect();
            [both.clone(), both].concat()
        })
    }

    /// Creates rotations in which the two halves of a head are separate: the first rotates by the column, the second by the row.
    pub(super) fn by_axis(grid: (usize, usize), head_dim: usize, theta: f32, dtype: Dtype) -> Result<Self> {
        let of = |place: usize| -> Vec<f32> {
            (0..head_dim / 4).map(|index| place as f32 * frequency(index, head_dim / 2, theta)).collect()
        };
        Self::of(grid, head_dim, 2, dtype, |row, column| [of(column), of(column), of(row), of(row)].concat())
    }

    fn of(
        (rows, columns): (usize, usize),
        head_dim: usize,
        parts: i32,
        dtype: Dtype,
        turn: impl Fn(usize, usize) -> Vec<f32>,
    ) -> Result<Self> {
        let turns: Vec<f32> = (0..rows)
            .flat_map(|row| (0..columns).map(move |column| (row, column)))
            .flat_map(|(row, column)| turn(row, column))
            .collect();
        let shape = [(rows * columns) as i32, head_dim as i32];
        let array = |function: fn(f32) -> f32| -> Result<Array> {
            let values: Vec<f32> = turns.iter().map(|turn| function(*turn)).collect();
            Ok(Array::from_slice(&values, &shape).as_dtype(dtype)?)
        };
        Ok(Self { cos: array(f32::cos)?, sin: array(f32::sin)?, parts })
    }

    /// Returns the rotations of the patches in another order.
    pub(super) fn in_order(&self, order: &Array) -> Result<Self> {
        let moved = |turns: &Array| turns.take_axis(order, 0);
        Ok(Self { cos: moved(&self.cos)?, sin: moved(&self.sin)?, parts: self.parts })
    }

    /// Rotates `[1, heads, patches, head_dim]`.
    pub(super) fn rotate(&self, input: &Array) -> Result<Array> {
        let half = input.dim(-1) / (2 * self.parts);
        let mut turned = Vec::new();
        for first in (0..self.parts).map(|part| 2 * part * half) {
            let second = first + half;
            turned.push(negative(slice_axis(input, 3, second, second + half)?)?);
            turned.push(slice_axis(input, 3, first, second)?);
        }
        let turned = concatenate(&turned.iter().collect::<Vec<_>>(), 3)?;
        Ok(add(multiply(input, &self.cos)?, multiply(&turned, &self.sin)?)?)
    }
}

/// Returns the frequency of the pair `index` of `width` rotated numbers.
fn frequency(index: usize, width: usize, theta: f32) -> f32 {
    theta.powf((2 * index) as f32 / width as f32).recip()
}
