//! The matrices of one projection of all experts, dense or packed, and their product with the rows of chosen experts.

use mlx_rs::ops::{concatenate, gather_mm};
use mlx_rs::{Array, Dtype};

use crate::error::Result;
use crate::quantization::QuantizedMatrix;
use crate::weights::LoadedMatrix;

/// The matrices of all experts.
#[derive(Clone)]
pub(super) enum Stack {
    /// `[experts, input, output]`, possibly a transposed view. Halves with activations in f32 are always such a view, because MLX multiplies
    /// them without a copy only then.
    Dense(Array),
    /// `[experts, output, input]`
    QuantizedMatrix(QuantizedMatrix),
}

impl Stack {
    pub(super) fn of(taken: LoadedMatrix) -> Result<Self> {
        match taken {
            LoadedMatrix::Packed(packed) => Ok(Self::QuantizedMatrix(packed)),
            LoadedMatrix::Dense(weight) => Self::dense(&weight),
        }
    }

    /// Transposes `[experts, output, input]`.
    pub(super) fn dense(weight: &Array) -> Result<Self> {
        let transposed = weight.swap_axes(1, 2)?;
        transposed.eval()?;
        Ok(Self::Dense(transposed))
    }

    /// Takes `[experts, input, output]`, for activations of type `dtype`.
    pub(super) fn transposed(weight: Array, dtype: Dtype) -> Result<Self> {
        if weight.dtype() == dtype {
            return Ok(Self::Dense(weight));
        }
        Self::dense(&weight.swap_axes(1, 2)?.contiguous()?)
    }

    pub(super) fn forward(&self, input: &Array, chosen: &Array, sorted: bool) -> Result<Array> {
        match self {
            Self::Dense(weight) => Ok(gather_mm(input, weight, None, chosen, sorted)?),
            Self::QuantizedMatrix(packed) => packed.gather_multiply(input, chosen, sorted),
        }
    }

    /// Combines outputs of the same experts into as few stacks as their schemes allow.
    pub(super) fn joined(parts: Vec<Self>) -> Result<Vec<Self>> {
        Ok(match parts.as_slice() {
            [Self::Dense(one), Self::Dense(other)] => {
                vec![Self::dense(&joined(&[one.swap_axes(1, 2)?, other.swap_axes(1, 2)?], 1)?)?]
            }
            [Self::QuantizedMatrix(one), Self::QuantizedMatrix(other)] if one.has_same_scheme(other) => {
                vec![Self::QuantizedMatrix(QuantizedMatrix::stack(&[one, other])?)]
            }
            _ => parts,
        })
    }
}

/// Concatenates the parts along `axis` and evaluates the result.
pub(super) fn joined(parts: &[Array], axis: i32) -> Result<Array> {
    let joined = concatenate(parts, axis)?;
    joined.eval()?;
    Ok(joined)
}
