//! Queries that grow with their position, so that attention stays sharp far into a text (Llama 4's temperature).

use mlx_rs::Array;
use mlx_rs::ops::{add, divide, floor, log, multiply};

use crate::error::Result;

/// The factor of queries: `1 + scale * ln(1 + floor(position / floor_scale))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionTemperatureConfig {
    /// The rate of growth.
    pub scale: f32,
    /// The number of positions between two changes.
    pub floor_scale: f32,
}

/// A temperature on the device.
pub(in crate::model) struct AttentionTemperature(AttentionTemperatureConfig);

impl AttentionTemperature {
    pub(in crate::model) fn new(temperature: AttentionTemperatureConfig) -> Self {
        Self(temperature)
    }

    /// Scales queries, `[T, H, 1, D]`, at these positions, `[T, 1, 1]` in f32.
    pub(in crate::model) fn forward(&self, query: &Array, positions: &Array) -> Result<Array> {
        let number = Array::from_f32;
        let steps = floor(divide(positions, number(self.0.floor_scale))?)?;
        let grown = multiply(log(add(steps, number(1.0))?)?, number(self.0.scale))?;
        let factor = add(grown, number(1.0))?.expand_dims(3)?.as_dtype(query.dtype())?;
        Ok(multiply(query, factor)?)
    }
}
