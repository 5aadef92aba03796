//! Rotary position embedding (Su et al., 2021, arXiv:2104.09864).

use std::ops::Range;

use mlx_rs::fast::{rope, rope_dynamic};
use mlx_rs::ops::{add, arange, concatenate, cos, exp, multiply, negative, reciprocal, select, sin};
use mlx_rs::{Array, Axes, Dtype};

use super::decoder::LayerConfig;
use super::rope_config::{RopeConfig, RopeScaling};
use super::rope_frequencies::scaled_freqs;
use crate::array::slice_axis;
use crate::error::Result;

/// Where the rows of a pass stand in their sequences.
pub(crate) enum Positions {
    /// Consecutive positions of one sequence.
    Run(Range<i32>),
    /// One position a row, `[R]` of i32.
    Each(Array),
}

impl Positions {
    /// `[R, 1, 1]` of f32.
    pub(super) fn column(&self) -> Result<Array> {
        let row = match self {
            Self::Run(range) => arange::<_, f32>(range.start, range.end, 1)?,
            Self::Each(positions) => positions.as_dtype(Dtype::Float32)?,
        };
        Ok(row.reshape(&[-1, 1, 1])?)
    }
}

/// Which rows belong to sequences beyond the border of LongRoPE.
pub(crate) enum Beyond {
    None,
    All,
    /// `[R, 1, 1, 1]` of booleans.
    Some(Array),
}

/// Turns pairs of a head's dims by an angle that grows with the position.
#[derive(Clone)]
pub(crate) struct Rope {
    dims: i32,
    interleaved: bool,
    theta: Option<f32>,
    scale: f32,
    /// `[dims / 2]` freqs over 2 pi, in place of the theta.
    freqs: Option<Array>,
    /// The same in sequences beyond the border, if there is one.
    beyond: Option<Array>,
    /// What the turned dims are multiplied with.
    attention_factor: Option<f32>,
    /// Whether the device has a kernel for the turning as a whole.
    fused: bool,
}

/// What the rows of one pass need to be turned, the same in every layer with the same rope.
pub(crate) enum RotaryTables {
    /// A kernel computes the angles itself.
    Kernel(Rope),
    /// Cosines and sines of the rows' angles, of the shape of a head's pairs, `[R, 1, 2, dims / 2]` or, interleaved,
    /// `[R, 1, dims / 2, 2]`; the first of a pair has the sine's sign turned.
    Angles { dims: i32, axis: i32, cosines: Array, sines: Array },
}

impl Rope {
    /// The constants of the turning.
    pub(crate) fn new(config: &RopeConfig, fused: bool) -> Self {
        let scale =
            if let RopeScaling::Linear(factor) = config.scaling { (1.0 / factor) as f32 } else { 1.0 };
        let freqs = |beyond| {
            let lengths: Vec<f32> =
                scaled_freqs(config, beyond)?.into_iter().map(|length| length as f32).collect();
            Some(Array::from_slice(&lengths, &[lengths.len() as i32]))
        };
        let scaled_freqs = freqs(false);
        let turning = scaled_freqs.as_ref().map_or(config.dims, |lengths| 2 * lengths.size());
        Self {
            dims: turning as i32,
            interleaved: config.interleaved,
            theta: scaled_freqs.is_none().then_some(config.theta as f32),
            scale,
            freqs: scaled_freqs,
            beyond: config.short_context().and_then(|_| freqs(true)),
            attention_factor: config
                .attention_factor
                .filter(|by| (by - 1.0).abs() > f64::EPSILON)
                .map(|by| by as f32),
            fused,
        }
    }

    /// Prepares the turning of the rows of a pass.
    pub(crate) fn rotary(&self, positions: &Positions, beyond: &Beyond) -> Result<RotaryTables> {
        if self.fused {
            return Ok(RotaryTables::Kernel(self.clone()));
        }
        // MLX would compute cosines and sines anew in every layer here.
        let positions = multiply(positions.column()?, Array::from_f32(self.scale))?;
        let usual = self.steps(self.freqs.as_ref())?;
        let angles = match (&self.beyond, beyond) {
            (None, _) | (_, Beyond::None) => multiply(positions, usual)?,
            (long, Beyond::All) => multiply(positions, self.steps(long.as_ref())?)?,
            (long, Beyond::Some(rows)) => {
                let long = multiply(&positions, self.steps(long.as_ref())?)?;
                select(rows.reshape(&[-1, 1, 1])?, long, multiply(positions, usual)?)?
            }
        };
        let (mut cosines, mut sines) = (cos(&angles)?, sin(&angles)?);
        if let Some(attention_factor) = self.attention_factor.map(Array::from_f32) {
            (cosines, sines) = (multiply(cosines, &attention_factor)?, multiply(sines, &attention_factor)?);
        }
        let axis = if self.interleaved { 3 } else { 2 };
        let pairs = |first: &Array, second: &Array| {
            concatenate(&[first.expand_dims(axis)?, second.expand_dims(axis)?], axis)
        };
        let (cosines, sines) = (pairs(&cosines, &cosines)?, pairs(&negative(&sines)?, &sines)?);
        Ok(RotaryTables::Angles { dims: self.dims, axis, cosines, sines })
    }

    /// `[dims / 2]` angles from one position to the next, rounded as MLX's own function rounds them.
    fn steps(&self, freqs: Option<&Array>) -> Result<Array> {
        let Some(freqs) = freqs else {
            let pairs = self.dims / 2;
            let step = self.theta.unwrap_or(1.0).ln() / pairs as f32;
            return Ok(exp(multiply(arange::<_, f32>(0, -pairs, -1)?, Array::from_f32(step))?)?);
        };
        Ok(reciprocal(freqs)?)
    }

    /// Turns every row of `[1, H, T, D]`, which was turned before, by the same number of positions more; it may be negative.
    pub(crate) fn rotate_by(&self, turned: &Array, positions: i32) -> Result<Array> {
        let by_row = turned.swap_axes(0, 2)?;
        let positions = Array::from_slice(&vec![positions; by_row.dim(0) as usize], &[by_row.dim(0)]);
        let unscaled = Self { attention_factor: None, ..self.clone() };
        let positions = Positions::Each(positions);
        let rotary = unscaled.rotary(&positions, &Beyond::None)?;
        Ok(rotary.forward(&by_row, &positions, &Beyond::None)?.swap_axes(0, 2)?)
    }

    /// By the device's kernel.
    fn fused(&self, heads: &Array, positions: &Positions, beyond: &Beyond) -> Result<Array> {
        let stronger = self
            .attention_factor
            .map(|attention_factor| self.scaled_heads(heads, attention_factor))
            .transpose()?;
        let heads = stronger.as_ref().unwrap_or(heads);
        let usual = self.freqs.as_ref();
        match (&self.beyond, beyond) {
            (None, _) | (_, Beyond::None) => self.call(heads, positions, usual),
            (long, Beyond::All) => self.call(heads, positions, long.as_ref()),
            (long, Beyond::Some(rows)) => {
                let long = self.call(heads, positions, long.as_ref())?;
                Ok(select(rows, long, self.call(heads, positions, usual)?)?)
            }
        }
    }

    /// The dims that will rotary, multiplied.
    fn scaled_heads(&self, heads: &Array, attention_factor: f32) -> Result<Array> {
        let of = |place| if place < self.dims { attention_factor } else { 1.0 };
        let magnitudes: Vec<f32> = (0..heads.dim(3)).map(of).collect();
        Ok(multiply(heads, Array::from_slice(&magnitudes, &[heads.dim(3)]).as_dtype(heads.dtype())?)?)
    }

    fn call(&self, heads: &Array, positions: &Positions, freqs: Option<&Array>) -> Result<Array> {
        let Self { dims, interleaved, theta, scale, .. } = *self;
        Ok(match positions {
            Positions::Run(Range { start, .. }) => {
                let by_head = heads.swap_axes(0, 2)?;
                rope(&by_head, dims, interleaved, theta, scale, *start, freqs)?.swap_axes(0, 2)?
            }
            Positions::Each(starts) => rope_dynamic(heads, dims, interleaved, theta, scale, starts, freqs)?,
        })
    }
}

impl RotaryTables {
    /// Turns `[R, H, 1, D]`, the rows of the pass that this was prepared for.
    pub(crate) fn forward(&self, heads: &Array, positions: &Positions, beyond: &Beyond) -> Result<Array> {
        let (dims, axis, cosines, sines) = match self {
            Self::Kernel(rope) => return rope.fused(heads, positions, beyond),
            Self::Angles { dims, axis, cosines, sines } => (*dims, *axis, cosines, sines),
        };
        let [rows, count, _, size] = [0, 1, 2, 3].map(|axis| heads.dim(axis));
        let turning = if dims == size { heads } else { &slice_axis(heads, 3, 0, dims)? };
        let mut shape = [rows, count, dims / 2, dims / 2];
        shape[axis as usize] = 2;
        let pairs = turning.reshape(&shape)?;
        let [cosines, sines] = [cosines, sines].map(|numbers| numbers.as_dtype(heads.dtype()));
        let turned = add(multiply(&pairs, cosines?)?, multiply(pairs.flip(Axes::Axis(axis))?, sines?)?)?;
        let turned = turned.reshape(&[rows, count, 1, dims])?;
        if dims == size {
            return Ok(turned);
        }
        Ok(concatenate(&[turned, slice_axis(heads, 3, dims, size)?], 3)?)
    }
}

/// The ropes of a model's layers, each once.
pub(super) struct Ropes {
    distinct: Vec<Rope>,
    /// Which of them each layer has, if any.
    of_layers: Vec<Option<usize>>,
}

impl Ropes {
    pub(super) fn new(layers: &[LayerConfig], fused: bool) -> Self {
        let mut configs: Vec<&RopeConfig> = Vec::new();
        let mut place = |config| {
            configs.iter().position(|&other| other == config).unwrap_or_else(|| {
                configs.push(config);
                configs.len() - 1
            })
        };
        let of_layers = layers.iter().map(|layer| layer.rope.as_ref().map(&mut place)).collect();
        let distinct = configs.into_iter().map(|config| Rope::new(config, fused)).collect();
        Self { distinct, of_layers }
    }

    /// Prepares the rows of a pass for all layers.
    pub(super) fn tables(&self, positions: &Positions, beyond: &Beyond) -> Result<Vec<RotaryTables>> {
        self.distinct.iter().map(|rope| rope.rotary(positions, beyond)).collect()
    }

    /// What of these belongs to a layer.
    pub(super) fn of_layer<'a>(&self, tables: &'a [RotaryTables], layer: usize) -> Option<&'a RotaryTables> {
        self.of_layers[layer].map(|place| &tables[place])
    }

    /// A layer's keys `[1, H, T, D]` as they would be `positions` earlier: turnings add up.
    pub(super) fn rerotate(&self, layer: usize, keys: &Array, positions: usize) -> Result<Array> {
        // A layer that knows no positions has the same keys everywhere.
        let rope = self.of_layers[layer].map(|place| &self.distinct[place]);
        rope.map_or(Ok(keys.clone()), |rope| rope.rotate_by(keys, -(positions as i32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// Turnings add up: a key that was turned to one place and back by some positions stands where it would have stood.
    #[test]
    fn a_key_that_moves_is_the_key_of_its_new_place() {
        let _turn = crate::device_lock::device();
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 64.0,
        };
        for (scaling, dims, interleaved, attention_factor) in [
            (RopeScaling::None, 16, false, None),
            (RopeScaling::Linear(4.0), 16, true, None),
            (llama3, 16, false, Some(1.3)),
            (RopeScaling::None, 8, false, None),
        ] {
            let config =
                RopeConfig { dims, theta: 10_000.0, interleaved, scaling: scaling.clone(), attention_factor };
            let rope = Rope::new(&config, false);
            let values: Vec<f32> = (0..2 * 5 * 16).map(|place| (place as f32 * 0.7).sin()).collect();
            let keys = Array::from_slice(&values, &[5, 2, 1, 16]);
            let at = |start| {
                let positions = Positions::Run(start..start + 5);
                let rotary = rope.rotary(&positions, &Beyond::None)?;
                rotary.forward(&keys, &positions, &Beyond::None)?.swap_axes(0, 2).map_err(Error::from)
            };
            let there = at(700).expect("it has a form");
            let moved = rope.rotate_by(&there, -600).expect("it has a form");
            let expected = at(100).expect("it has a form");
            let read = |array: &Array| crate::array::to_bytes(array).expect("it is computed").1;
            let floats = |array: &Array| -> Vec<f32> {
                read(array).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
            };
            for (one, other) in floats(&moved).iter().zip(floats(&expected)) {
                assert!((one - other).abs() < 2e-4, "{scaling:?}, {dims} dims: {one} and {other}");
            }
        }
    }
}
