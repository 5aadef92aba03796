//! Merges an adapter's update into a matrix, with the arithmetic of mlx-lm.

use std::slice;

use mlx_rs::Array;
use mlx_rs::ops::{add, divide, matmul, multiply, sqrt, square, sum_axis};

use super::{Adapter, Factor, Target};
use crate::array::scalar_like;
use crate::error::Result;

impl Adapter {
    /// Reads a tensor in mlx-lm's layout, in the file's type.
    pub(crate) fn array(&mut self, factor: &Factor) -> Result<Array> {
        let Factor { entry, transposed } = factor;
        let (array, hashes) = self.checkpoint.array(slice::from_ref(entry))?;
        self.hash.update(&hashes.concat());
        if *transposed { Ok(array.swap_axes(0, 1)?.contiguous()?) } else { Ok(array) }
    }
}

/// The arrays of an update, in mlx-lm's layout.
pub(crate) struct Change {
    pub(crate) target: Target,
    pub(crate) first: Array,
    pub(crate) second: Array,
    pub(crate) scale: f32,
    /// `[output]`
    pub(crate) magnitude: Option<Array>,
}

impl Change {
    /// Applies the update to `weight`, `[.., output, input]` or a table of rows. The type stays unless magnitudes have a wider one.
    pub(crate) fn fused(&self, weight: &Array) -> Result<Array> {
        let Self { first, second, .. } = self;
        let scaled =
            |factor: &Array| -> Result<Array> { Ok(multiply(factor, scalar_like(self.scale, factor)?)?) };
        let change = match self.target {
            Target::Linear { .. } => matmul(scaled(&second.swap_axes(0, 1)?)?, first.swap_axes(0, 1)?)?,
            Target::Experts { .. } => matmul(scaled(second)?, first)?,
            Target::Embedding { .. } => matmul(scaled(first)?, second)?,
        };
        let weight = add(weight, change.as_dtype(weight.dtype())?)?;
        match &self.magnitude {
            None => Ok(weight),
            Some(magnitude) => {
                let lengths = sqrt(sum_axis(square(&weight)?, 1, false)?)?;
                Ok(multiply(divide(magnitude, lengths)?.expand_dims(1)?, &weight)?)
            }
        }
    }
}
