//! The rotation of the rows of one pass, which all layers with one rope share.

use mlx_rs::fast::rope_dynamic;
use mlx_rs::ops::{add, concatenate, cos, multiply, negative, select, sin};
use mlx_rs::{Array, Axes, Dtype};

use super::constants::Rope;
use crate::array::slice_axis;
use crate::error::Result;

/// The rows of sequences of the long variant (LongRoPE).
#[derive(Clone)]
pub(in crate::model) enum LongRows {
    None,
    All,
    /// `[T, 1, 1, 1]` of booleans.
    Some(Array),
}

/// The rotation of the rows of a pass.
pub(in crate::model) enum Rotary {
    /// One operation, which also computes the angles. Positions are `[T]`.
    Fused { rope: Rope, positions: Array, long: LongRows },
    /// Cosines and sines of the rows' angles in the shape of a head's pairs, `[T, 1, 2, dims / 2]` or, interleaved,
    /// `[T, 1, dims / 2, 2]`. The sine of the first element of a pair is negated.
    Angles { dims: i32, axis: i32, cosines: Array, sines: Array },
}

impl Rotary {
    /// Creates the rotation of rows at `positions`, `[T]` of i32, or `[3, T]` in time, height and width.
    pub(super) fn new(rope: &Rope, positions: &Array, long: &LongRows) -> Result<Self> {
        let has_axes = positions.ndim() > 1;
        if rope.fused && !has_axes {
            return Ok(Self::Fused { rope: rope.clone(), positions: positions.clone(), long: long.clone() });
        }
        // The angles are computed once per pass. The fused operation of MLX's CPU backend would compute them in every layer.
        let column = match &rope.axes {
            Some(axes) if has_axes => positions.take_axis(axes, 0)?.swap_axes(0, 1)?.expand_dims(1)?,
            _ if has_axes => slice_axis(positions, 0, 0, 1)?.reshape(&[-1, 1, 1])?,
            _ => positions.reshape(&[-1, 1, 1])?,
        };
        let column = column.as_dtype(Dtype::Float32)?;
        let column = multiply(column, Array::from_f32(rope.scale))?;
        let angles =
            |inverse: Option<&Array>| -> Result<Array> { Ok(multiply(&column, rope.frequencies(inverse)?)?) };
        let short = || angles(rope.inverse.as_ref());
        let angles = match (&rope.long, long) {
            (None, _) | (_, LongRows::None) => short()?,
            (inverse, LongRows::All) => angles(inverse.as_ref())?,
            (inverse, LongRows::Some(rows)) => {
                select(rows.reshape(&[-1, 1, 1])?, angles(inverse.as_ref())?, short()?)?
            }
        };
        let (mut cosines, mut sines) = (cos(&angles)?, sin(&angles)?);
        if let Some(factor) = rope.attention_factor.map(Array::from_f32) {
            (cosines, sines) = (multiply(cosines, &factor)?, multiply(sines, &factor)?);
        }
        let axis = if rope.interleaved { 3 } else { 2 };
        let pairs = |first: &Array, second: &Array| {
            concatenate(&[first.expand_dims(axis)?, second.expand_dims(axis)?], axis)
        };
        let (cosines, sines) = (pairs(&cosines, &cosines)?, pairs(&negative(&sines)?, &sines)?);
        Ok(Self::Angles { dims: rope.dims, axis, cosines, sines })
    }

    /// Rotates `[T, H, 1, D]`.
    pub(in crate::model) fn forward(&self, heads: &Array) -> Result<Array> {
        let (dims, axis, cosines, sines) = match self {
            Self::Fused { rope, positions, long } => return rope.rotate(heads, positions, long),
            Self::Angles { dims, axis, cosines, sines } => (*dims, *axis, cosines, sines),
        };
        let [rows, count, _, size] = [0, 1, 2, 3].map(|axis| heads.dim(axis));
        let part = if dims == size { heads } else { &slice_axis(heads, 3, 0, dims)? };
        let mut shape = [rows, count, dims / 2, dims / 2];
        shape[axis as usize] = 2;
        let pairs = part.reshape(&shape)?;
        let [cosines, sines] = [cosines, sines].map(|numbers| numbers.as_dtype(heads.dtype()));
        let rotated = add(multiply(&pairs, cosines?)?, multiply(pairs.flip(Axes::Axis(axis))?, sines?)?)?;
        let rotated = rotated.reshape(&[rows, count, 1, dims])?;
        if dims == size {
            return Ok(rotated);
        }
        Ok(concatenate(&[rotated, slice_axis(heads, 3, dims, size)?], 3)?)
    }
}

impl Rope {
    /// Rotates `[T, H, 1, D]` at `positions`, `[T]`, with MLX's operation.
    fn rotate(&self, heads: &Array, positions: &Array, long: &LongRows) -> Result<Array> {
        let scaled = self.attention_factor.map(|factor| self.scale_dims(heads, factor)).transpose()?;
        let heads = scaled.as_ref().unwrap_or(heads);
        let Self { dims, interleaved, theta, scale, .. } = *self;
        let rotate = |inverse: Option<&Array>| {
            rope_dynamic(heads, dims, interleaved, theta, scale, positions, inverse)
        };
        let short = || rotate(self.inverse.as_ref());
        Ok(match (&self.long, long) {
            (None, _) | (_, LongRows::None) => short()?,
            (inverse, LongRows::All) => rotate(inverse.as_ref())?,
            (inverse, LongRows::Some(rows)) => select(rows, rotate(inverse.as_ref())?, short()?)?,
        })
    }

    /// Multiplies the dimensions that will be rotated by `factor`.
    fn scale_dims(&self, heads: &Array, factor: f32) -> Result<Array> {
        let size = heads.dim(3);
        let factors: Vec<f32> = (0..size).map(|dim| if dim < self.dims { factor } else { 1.0 }).collect();
        Ok(multiply(heads, Array::from_slice(&factors, &[size]).as_dtype(heads.dtype())?)?)
    }

    /// Rotates every row of `[1, H, T, D]`, which is already rotated, by `positions` more; it may be negative.
    pub(super) fn rotate_by(&self, heads: &Array, positions: i32) -> Result<Array> {
        let by_row = heads.swap_axes(0, 2)?;
        let rows = by_row.dim(0);
        let positions = Array::from_slice(&vec![positions; rows as usize], &[rows]);
        // The factor is already applied.
        let unscaled = Self { attention_factor: None, ..self.clone() };
        let rotary = Rotary::new(&unscaled, &positions, &LongRows::None)?;
        Ok(rotary.forward(&by_row)?.swap_axes(0, 2)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::model::rope::config::{RopeConfig, RopeScaling};

    /// Rotations add up: a key that moves by some positions equals the key of its new position.
    #[test]
    fn a_key_that_moves_is_the_key_of_its_new_position() {
        let _turn = crate::device_lock::device();
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 64.0,
        };
        let cases = [
            (RopeScaling::None, 16, false, None),
            (RopeScaling::Linear(4.0), 16, true, None),
            (llama3, 16, false, Some(1.3)),
            (RopeScaling::None, 8, false, None),
        ];
        for ((scaling, dims, interleaved, attention_factor), fused) in
            cases.iter().flat_map(|case| [(case, false), (case, true)])
        {
            let config = RopeConfig {
                dims: *dims,
                theta: 10_000.0,
                interleaved: *interleaved,
                scaling: scaling.clone(),
                attention_factor: *attention_factor,
                mrope_section: None,
            };
            let rope = Rope::new(&config, fused);
            let values: Vec<f32> = (0..2 * 5 * 16).map(|place| (place as f32 * 0.7).sin()).collect();
            let keys = Array::from_slice(&values, &[5, 2, 1, 16]);
            let at = |start| {
                let positions: Vec<i32> = (start..start + 5).collect();
                let positions = Array::from_slice(&positions, &[5]);
                let rotary = Rotary::new(&rope, &positions, &LongRows::None)?;
                rotary.forward(&keys)?.swap_axes(0, 2).map_err(Error::from)
            };
            let there = at(700).expect("the shapes fit");
            let moved = rope.rotate_by(&there, -600).expect("the shapes fit");
            let expected = at(100).expect("the shapes fit");
            let read = |array: &Array| crate::array::to_bytes(array).expect("it is computed").1;
            let floats = |array: &Array| -> Vec<f32> {
                read(array).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
            };
            for (one, other) in floats(&moved).iter().zip(floats(&expected)) {
                assert!(
                    (one - other).abs() < 2e-4,
                    "{scaling:?}, {dims} dims, fused {fused}: {one}, {other}"
                );
            }
        }
    }
}
