//! Queries that grow with their position, so that attention stays sharp far into a text (Llama 4's temperature).

use mlx_rs::Array;
use mlx_rs::ops::{add, divide, floor, log, multiply};

use super::rope::Positions;
use crate::error::Result;

/// How much queries grow: `1 + growth * ln(1 + floor(position / step))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryStretch {
    /// How fast.
    pub growth: f32,
    /// Positions in between which nothing changes.
    pub step: f32,
}

/// A stretch on the device.
pub(super) struct Stretch(QueryStretch);

impl Stretch {
    pub(super) fn new(stretch: QueryStretch) -> Self {
        Self(stretch)
    }

    /// Queries `[R, H, 1, D]` at their positions.
    pub(super) fn forward(&self, query: &Array, positions: &Positions) -> Result<Array> {
        let number = Array::from_f32;
        let steps = floor(divide(positions.column()?, number(self.0.step))?)?;
        let grown = multiply(log(add(steps, number(1.0))?)?, number(self.0.growth))?;
        let factor = add(grown, number(1.0))?.expand_dims(3)?.as_dtype(query.dtype())?;
        Ok(multiply(query, factor)?)
    }
}
