//! Gates on the output of attention, from a separate projection without a bias: one per head, or one per dimension.

use mlx_rs::ops::{logaddexp, multiply, sigmoid};
use mlx_rs::{Array, Dtype};

use crate::array::scalar_like;
use crate::error::Result;
use crate::model::linear::{Linear, Part};
use crate::weights::Weights;

/// The gates of `g_proj`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadGateConfig {
    /// True if a head has one gate instead of one per dimension.
    pub per_head: bool,
    /// True if gates are `ln(1 + e^x)` instead of sigmoids.
    pub softplus: bool,
}

/// The projection to gates with its weights.
pub(in crate::model) struct HeadGate {
    projection: Linear,
    config: HeadGateConfig,
}

impl HeadGate {
    /// Loads `{name}.g_proj` for this many heads of `size` dimensions.
    pub(in crate::model) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        (heads, size): (usize, usize),
        config: HeadGateConfig,
    ) -> Result<Self> {
        let outputs = if config.per_head { heads } else { heads * size };
        let part = Part { name: &format!("{name}.g_proj"), outputs };
        Ok(Self { projection: Linear::load(weights, &[part], hidden, false)?, config })
    }

    /// Multiplies the output of attention, `[T, heads * size]`, with the gates of its input, `[T, hidden]`.
    pub(in crate::model) fn forward(&self, input: &Array, mixed: &Array, heads: usize) -> Result<Array> {
        let raw = self.projection.forward(input)?.as_dtype(Dtype::Float32)?;
        let gates =
            if self.config.softplus { logaddexp(&raw, scalar_like(0.0, &raw)?)? } else { sigmoid(&raw)? };
        let gates = gates.as_dtype(mixed.dtype())?;
        if !self.config.per_head {
            return Ok(multiply(mixed, gates)?);
        }
        let (rows, heads) = (mixed.dim(0), heads as i32);
        let by_head = mixed.reshape(&[rows, heads, -1])?;
        Ok(multiply(by_head, gates.reshape(&[rows, heads, 1])?)?.reshape(&[rows, mixed.dim(1)])?)
    }
}
