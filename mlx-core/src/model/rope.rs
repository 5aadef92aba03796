//! Rotary position embedding (Su et al., 2021, arXiv:2104.09864).

use mlx_rs::Array;
use mlx_rs::fast::{rope, rope_dynamic};
use mlx_rs::ops::{multiply, select};

use super::rope_config::{RopeConfig, RopeScaling};
use super::wavelengths::stretched;
use crate::error::Result;

/// Where the rows of an input stand in their sequences.
pub(crate) enum Positions {
    /// `[1, H, T, D]`: T consecutive positions from here.
    From(i32),
    /// `[R, H, 1, D]`: one position a row, `[R]` of i32.
    Each(Array),
}

/// Which rows belong to sequences beyond the border of LongRoPE.
pub(crate) enum Beyond {
    None,
    All,
    /// `[R, 1, 1, 1]` of booleans.
    Some(Array),
}

/// Turns pairs of a head's dimensions by an angle that grows with the position.
pub(crate) struct Rope {
    dimensions: i32,
    interleaved: bool,
    base: Option<f32>,
    scale: f32,
    /// `[dimensions / 2]` wavelengths over 2 pi, in place of the base.
    wavelengths: Option<Array>,
    /// The same in sequences beyond the border, if there is one.
    beyond: Option<Array>,
    /// `[D]`: what the dimensions of a head are multiplied with before they turn.
    magnitudes: Option<Array>,
}

impl Rope {
    /// The constants of the turning of heads of `head_size` dimensions.
    pub(crate) fn new(config: &RopeConfig, head_size: usize) -> Self {
        let scale =
            if let RopeScaling::Linear(factor) = config.scaling { (1.0 / factor) as f32 } else { 1.0 };
        let wavelengths = |beyond| {
            let lengths: Vec<f32> =
                stretched(config, beyond)?.into_iter().map(|length| length as f32).collect();
            Some(Array::from_slice(&lengths, &[lengths.len() as i32]))
        };
        let stretched = wavelengths(false);
        let turning = stretched.as_ref().map_or(config.dimensions, |lengths| 2 * lengths.size());
        let magnitudes = config.magnitude.filter(|by| (by - 1.0).abs() > f64::EPSILON);
        let magnitudes = magnitudes.map(|magnitude| {
            let of = |place| if place < turning { magnitude as f32 } else { 1.0 };
            let magnitudes: Vec<f32> = (0..head_size).map(of).collect();
            Array::from_slice(&magnitudes, &[head_size as i32])
        });
        Self {
            dimensions: turning as i32,
            interleaved: config.interleaved,
            base: stretched.is_none().then_some(config.base as f32),
            scale,
            wavelengths: stretched,
            beyond: config.border().and_then(|_| wavelengths(true)),
            magnitudes,
        }
    }

    /// Turns `[B, H, T, D]` by its positions.
    pub(crate) fn forward(&self, input: &Array, positions: &Positions, beyond: &Beyond) -> Result<Array> {
        let stronger = match &self.magnitudes {
            Some(magnitudes) => Some(multiply(input, magnitudes.as_dtype(input.dtype())?)?),
            None => None,
        };
        let input = stronger.as_ref().unwrap_or(input);
        let usual = self.wavelengths.as_ref();
        match (&self.beyond, beyond) {
            (None, _) | (_, Beyond::None) => self.turn(input, positions, usual),
            (long, Beyond::All) => self.turn(input, positions, long.as_ref()),
            (long, Beyond::Some(rows)) => {
                let long = self.turn(input, positions, long.as_ref())?;
                Ok(select(rows, long, self.turn(input, positions, usual)?)?)
            }
        }
    }

    /// Turns every row of `[1, H, T, D]`, which was turned before, by the same number of positions more; it may be negative.
    pub(crate) fn turn_on(&self, turned: &Array, positions: i32) -> Result<Array> {
        let by_row = turned.swap_axes(0, 2)?;
        let positions = Array::from_slice(&vec![positions; by_row.dim(0) as usize], &[by_row.dim(0)]);
        let further = self.turn(&by_row, &Positions::Each(positions), self.wavelengths.as_ref())?;
        Ok(further.swap_axes(0, 2)?)
    }

    fn turn(&self, input: &Array, positions: &Positions, wavelengths: Option<&Array>) -> Result<Array> {
        let Self { dimensions, interleaved, base, scale, .. } = *self;
        Ok(match positions {
            Positions::From(start) => rope(input, dimensions, interleaved, base, scale, *start, wavelengths)?,
            Positions::Each(starts) => {
                rope_dynamic(input, dimensions, interleaved, base, scale, starts, wavelengths)?
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turnings add up: a key that was turned to one place and back by some positions stands where it would have stood.
    #[test]
    fn a_key_that_moves_is_the_key_of_its_new_place() {
        let _turn = crate::turn::device();
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_frequency: 1.0,
            high_frequency: 4.0,
            original_context: 64.0,
        };
        for (scaling, dimensions, interleaved, magnitude) in [
            (RopeScaling::None, 16, false, None),
            (RopeScaling::Linear(4.0), 16, true, None),
            (llama3, 16, false, Some(1.3)),
            (RopeScaling::None, 8, false, None),
        ] {
            let config =
                RopeConfig { dimensions, base: 10_000.0, interleaved, scaling: scaling.clone(), magnitude };
            let rope = Rope::new(&config, 16);
            let at = Positions::From;
            let values: Vec<f32> = (0..2 * 5 * 16).map(|place| (place as f32 * 0.7).sin()).collect();
            let keys = Array::from_slice(&values, &[1, 2, 5, 16]);
            let there = rope.forward(&keys, &at(700), &Beyond::None).expect("it has a form");
            let moved = rope.turn_on(&there, -600).expect("it has a form");
            let expected = rope.forward(&keys, &at(100), &Beyond::None).expect("it has a form");
            let read = |array: &Array| crate::array::to_bytes(array).expect("it is computed").1;
            let floats = |array: &Array| -> Vec<f32> {
                read(array).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
            };
            for (one, other) in floats(&moved).iter().zip(floats(&expected)) {
                assert!(
                    (one - other).abs() < 2e-4,
                    "{scaling:?}, {dimensions} dimensions: {one} and {other}"
                );
            }
        }
    }
}
