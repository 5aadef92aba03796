//! The constants of one rope.

use mlx_rs::Array;
use mlx_rs::ops::{arange, exp, multiply, reciprocal};

use super::config::{RopeConfig, RopeScaling};
use super::frequencies::inverse_frequencies;
use crate::error::Result;

/// One rope: pairs of a head's dimensions rotate by an angle that grows with the position.
#[derive(Clone)]
pub(in crate::model) struct Rope {
    pub(super) dims: i32,
    pub(super) interleaved: bool,
    pub(super) theta: Option<f32>,
    pub(super) scale: f32,
    /// The inverse frequencies `[dims / 2]`, instead of `theta`.
    pub(super) inverse: Option<Array>,
    /// The inverse frequencies for sequences of the long variant, if there is one.
    pub(super) long: Option<Array>,
    /// The factor of the rotated dimensions.
    pub(super) attention_factor: Option<f32>,
    /// The axis of each pair, `[dims / 2]`, if rows have positions in time, height and width.
    pub(super) axes: Option<Array>,
    /// True if the rotation is one operation.
    pub(super) fused: bool,
}

impl Rope {
    pub(super) fn new(config: &RopeConfig, fused: bool) -> Self {
        let scale =
            if let RopeScaling::Linear(factor) = config.scaling { (1.0 / factor) as f32 } else { 1.0 };
        let rounded = |long| {
            let numbers: Vec<f32> =
                inverse_frequencies(config, long)?.into_iter().map(|number| number as f32).collect();
            Some(Array::from_slice(&numbers, &[numbers.len() as i32]))
        };
        let inverse = rounded(false);
        let dims = inverse.as_ref().map_or(config.dims, |numbers| 2 * numbers.size());
        Self {
            dims: dims as i32,
            interleaved: config.interleaved,
            theta: inverse.is_none().then_some(config.theta as f32),
            scale,
            inverse,
            long: config.short_context().and_then(|_| rounded(true)),
            attention_factor: config
                .attention_factor
                .filter(|factor| (factor - 1.0).abs() > f64::EPSILON)
                .map(|factor| factor as f32),
            axes: config.mrope_section.map(|section| {
                let axes = section.axes(dims / 2).into_iter().map(|axis| axis as i32);
                Array::from_slice(&axes.collect::<Vec<_>>(), &[(dims / 2) as i32])
            }),
            fused,
        }
    }

    /// Returns the frequencies `[dims / 2]`: the angle between adjacent positions, rounded as MLX's function rounds it.
    pub(super) fn frequencies(&self, inverse: Option<&Array>) -> Result<Array> {
        let Some(inverse) = inverse else {
            let pairs = self.dims / 2;
            let step = self.theta.unwrap_or(1.0).ln() / pairs as f32;
            return Ok(exp(multiply(arange::<_, f32>(0, -pairs, -1)?, Array::from_f32(step))?)?);
        };
        Ok(reciprocal(inverse)?)
    }
}
