//! Rotary position embedding (Su et al., 2021, arXiv:2104.09864).

mod config;
mod frequencies;
mod layers;
mod rotary;

use mlx_rs::Array;
use mlx_rs::ops::{arange, exp, multiply, reciprocal};

pub(super) use config::LONG;
pub use config::{RopeConfig, RopeDefaults, RopeScaling};
use frequencies::inverse_frequencies;
pub(super) use layers::Ropes;
pub(super) use rotary::{LongRows, Rotary};

use crate::error::Result;

/// The constants of one rope. Pairs of a head's dims rotate by an angle that grows with the position.
#[derive(Clone)]
pub(super) struct Rope {
    dims: i32,
    interleaved: bool,
    theta: Option<f32>,
    scale: f32,
    /// Inverse frequencies `[dims / 2]` in place of `theta`.
    inverse: Option<Array>,
    /// The same for sequences of the long variant, if there is one.
    long: Option<Array>,
    /// A factor of the rotated dims.
    attention_factor: Option<f32>,
    /// Whether the rotation is one operation.
    fused: bool,
}

impl Rope {
    fn new(config: &RopeConfig, fused: bool) -> Self {
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
            fused,
        }
    }

    /// Frequencies `[dims / 2]`, the angle from one position to the next, rounded as MLX's own function rounds them.
    fn frequencies(&self, inverse: Option<&Array>) -> Result<Array> {
        let Some(inverse) = inverse else {
            let pairs = self.dims / 2;
            let step = self.theta.unwrap_or(1.0).ln() / pairs as f32;
            return Ok(exp(multiply(arange::<_, f32>(0, -pairs, -1)?, Array::from_f32(step))?)?);
        };
        Ok(reciprocal(inverse)?)
    }

    /// Rotates every row of `[1, H, T, D]`, which were rotated before, by `positions` more; it may be negative.
    fn rotate_by(&self, heads: &Array, positions: i32) -> Result<Array> {
        let by_row = heads.swap_axes(0, 2)?;
        let rows = by_row.dim(0);
        let positions = Array::from_slice(&vec![positions; rows as usize], &[rows]);
        // The factor was applied before.
        let unscaled = Self { attention_factor: None, ..self.clone() };
        let rotary = Rotary::new(&unscaled, &positions, &LongRows::None)?;
        Ok(rotary.forward(&by_row)?.swap_axes(0, 2)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// Rotations add up: a key that moves by some positions is the key of its new position.
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
