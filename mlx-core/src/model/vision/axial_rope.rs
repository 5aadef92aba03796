//! Rope in two dimensions: half of a head turns with the row of a patch, half with its column.

use mlx_rs::ops::{add, concatenate, multiply, negative};
use mlx_rs::{Array, Dtype};

use crate::array::slice_axis;
use crate::error::Result;

/// The turns of all patches of a picture. Rows take the frequencies of even index; columns the same, or those of odd index, which lie
/// between.
pub(super) struct AxialRope {
    /// `[patches, head_dim]`
    cos: Array,
    sin: Array,
}

impl AxialRope {
    /// Of a grid of rows and columns, for heads of this width, which is a multiple of 4.
    pub(super) fn new(
        (rows, columns): (usize, usize),
        head_dim: usize,
        theta: f32,
        columns_between: bool,
        dtype: Dtype,
    ) -> Result<Self> {
        let frequency = |index: usize| theta.powf((2 * index) as f32 / head_dim as f32).recip();
        let turn = |row: usize, column: usize| {
            let of = move |place: usize, odd: usize| {
                (0..head_dim / 4).map(move |index| place as f32 * frequency(2 * index + odd))
            };
            let both: Vec<f32> = of(row, 0).chain(of(column, usize::from(columns_between))).collect();
            [both.clone(), both].concat()
        };
        let turns: Vec<f32> = (0..rows)
            .flat_map(|row| (0..columns).map(move |column| (row, column)))
            .flat_map(|(row, column)| turn(row, column))
            .collect();
        let shape = [(rows * columns) as i32, head_dim as i32];
        let array = |function: fn(f32) -> f32| -> Result<Array> {
            let values: Vec<f32> = turns.iter().map(|turn| function(*turn)).collect();
            Ok(Array::from_slice(&values, &shape).as_dtype(dtype)?)
        };
        Ok(Self { cos: array(f32::cos)?, sin: array(f32::sin)? })
    }

    /// Turns `[1, heads, patches, head_dim]`.
    pub(super) fn rotate(&self, input: &Array) -> Result<Array> {
        let width = input.dim(-1);
        let (first, second) = (slice_axis(input, 3, 0, width / 2)?, slice_axis(input, 3, width / 2, width)?);
        let turned = concatenate(&[&negative(&second)?, &first], 3)?;
        Ok(add(multiply(input, &self.cos)?, multiply(&turned, &self.sin)?)?)
    }
}
