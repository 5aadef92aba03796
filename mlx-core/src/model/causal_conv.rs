//! A depthwise convolution over a row and the few before it. Invariant: a row is the same products added in the same order, whatever
//! rows are computed with it.

use mlx_rs::ops::{add, concatenate, multiply, zeros_dtype};
use mlx_rs::{Array, Dtype};

use crate::array::slice_axis;
use crate::error::Result;
use crate::weights::Weights;

/// The taps of every channel.
pub(super) struct CausalConv {
    /// One `[1, channels]` of f32 for each row that is seen, the oldest first.
    taps: Vec<Array>,
    /// `[channels]`
    bias: Option<Array>,
}

impl CausalConv {
    /// Takes `{name}.weight`, which has `[channels, 1, taps]` or, as mlx-lm writes it, `[channels, taps, 1]`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        channels: usize,
        taps: usize,
        bias: bool,
    ) -> Result<Self> {
        let conv = Self::load_parts(weights, &[name], channels, taps)?;
        let bias = bias.then(|| weights.take(&format!("{name}.bias"), &[channels])).transpose()?;
        Ok(Self { bias, ..conv })
    }

    /// Convolutions without biases, each of so many channels, side by side.
    pub(super) fn load_parts(
        weights: &mut Weights,
        names: &[&str],
        channels: usize,
        taps: usize,
    ) -> Result<Self> {
        let parts = names.iter().map(|name| {
            let weight = format!("{name}.weight");
            let last = weights.shape(&weight).and_then(|shape| shape.last().copied());
            let shape = if last == Some(1) { [channels, taps, 1] } else { [channels, 1, taps] };
            let all = weights.take(&weight, &shape)?.as_dtype(Dtype::Float32)?;
            Ok(all.reshape(&[channels as i32, taps as i32])?)
        });
        let all = concatenate(&parts.collect::<Result<Vec<Array>>>()?, 0)?;
        let by_tap = all.swap_axes(0, 1)?.contiguous()?;
        let taps = (0..taps as i32).map(|tap| slice_axis(&by_tap, 0, tap, tap + 1));
        Ok(Self { taps: taps.collect::<Result<_>>()?, bias: None })
    }

    /// `[n, channels]`, which follow the rows `before`, `[taps - 1, channels]` or nothing. Gives the same shape in f32, and the rows
    /// before the next one.
    pub(super) fn forward(&self, rows: &Array, before: Option<&Array>) -> Result<(Array, Array)> {
        let (count, channels, seen) = (rows.dim(0), rows.dim(1), self.taps.len() as i32 - 1);
        let nothing = || zeros_dtype(&[seen, channels], rows.dtype());
        let all = match before {
            Some(before) => concatenate(&[before, rows], 0)?,
            None => concatenate(&[&nothing()?, rows], 0)?,
        };
        // Not a view, which would keep all rows in memory.
        let after = slice_axis(&all, 0, count, count + seen)?.contiguous()?;
        let all = all.as_dtype(Dtype::Float32)?;
        let mut sum: Option<Array> = None;
        for (place, tap) in self.taps.iter().enumerate() {
            let product = multiply(slice_axis(&all, 0, place as i32, place as i32 + count)?, tap)?;
            sum = Some(match sum {
                Some(sum) => add(sum, product)?,
                None => product,
            });
        }
        let sum = sum.unwrap_or(all);
        let sum = self.bias.as_ref().map_or(Ok(sum.clone()), |bias| add(&sum, bias))?;
        Ok((sum, after))
    }
}
