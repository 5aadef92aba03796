//! The rotation of the rows of one pass, the same in every layer that has the same rope.

use mlx_rs::fast::rope_dynamic;
use mlx_rs::ops::{add, concatenate, cos, multiply, negative, select, sin};
use mlx_rs::{Array, Axes, Dtype};

use super::Rope;
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

/// How the rows of a pass are rotated.
pub(in crate::model) enum Rotary {
    /// By one operation that computes the angles itself; positions are `[T]`.
    Fused { rope: Rope, positions: Array, long: LongRows },
    /// Cosines and sines of the rows' angles in the shape of a head's pairs, `[T, 1, 2, dims / 2]` or, interleaved,
    /// `[T, 1, dims / 2, 2]`. The sine of the first of a pair is negated.
    Angles { dims: i32, axis: i32, cosines: Array, sines: Array },
}

impl Rotary {
    /// For rows at `positions`, `[T]` of i32.
    pub(super) fn new(rope: &Rope, positions: &Array, long: &LongRows) -> Result<Self> {
        if rope.fused {
            return Ok(Self::Fused { rope: rope.clone(), positions: positions.clone(), long: long.clone() });
        }
        // Once a pass; the fused operation of MLX's CPU backend would compute them in every layer.
        let column = positions.as_dtype(Dtype::Float32)?.reshape(&[-1, 1, 1])?;
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
    /// Rotates `[T, H, 1, D]` at `positions`, `[T]`, by MLX's own operation.
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

    /// The dims that will be rotated, times `factor`.
    fn scale_dims(&self, heads: &Array, factor: f32) -> Result<Array> {
        let size = heads.dim(3);
        let factors: Vec<f32> = (0..size).map(|dim| if dim < self.dims { factor } else { 1.0 }).collect();
        Ok(multiply(heads, Array::from_slice(&factors, &[size]).as_dtype(heads.dtype())?)?)
    }
}
