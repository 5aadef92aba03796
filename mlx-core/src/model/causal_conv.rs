//! A depthwise convolution over a row and the few rows before it. Invariant: a row is the sum of the same products in the same order,
//! regardless of the rows that are computed with it.

use mlx_rs::ops::{add, concatenate, multiply, zeros_dtype};
use mlx_rs::{Array, Dtype};

use crate::array::slice_axis;
use crate::error::Result;
use crate::weights::Weights;

/// The taps of every channel, and a bias.
pub(super) struct CausalConv {
    /// `[taps, channels]` of f32, for the oldest visible row first.
    all: Array,
    /// The taps as separate arrays, `[1, channels]` each.
    taps: Vec<Array>,
    /// `[channels]`
    bias: Option<Array>,
}

impl CausalConv {
    /// Loads `{name}.weight`, which has shape `[channels, 1, taps]`, or `[channels, taps, 1]` if mlx-lm wrote it.
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

    /// Loads convolutions without biases, each with `channels` channels, as one.
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
        Ok(Self { taps: taps.collect::<Result<_>>()?, all: by_tap, bias: None })
    }

    /// Returns the inputs before the first row of a sequence, `[1, taps - 1, channels]` of 0, in the type of `rows`.
    pub(super) fn nothing(&self, rows: &Array) -> Result<Array> {
        Ok(zeros_dtype(&[1, self.taps.len() as i32 - 1, rows.dim(1)], rows.dtype())?)
    }

    /// Returns the output, `[n, channels]` of f32, and the last inputs of each sequence. `before`, `[S, taps - 1, channels]`, has the inputs
    /// before the rows. It is for one sequence with all rows, or for `n` sequences with one row each.
    pub(super) fn forward(&self, rows: &Array, before: &Array) -> Result<(Array, Array)> {
        let (sum, after) =
            if before.dim(0) == rows.dim(0) { self.step(rows, before)? } else { self.run(rows, before)? };
        Ok((self.bias.as_ref().map_or(Ok(sum.clone()), |bias| add(&sum, bias))?, after))
    }

    fn step(&self, rows: &Array, before: &Array) -> Result<(Array, Array)> {
        let all = concatenate(&[before, &rows.expand_dims(1)?], 1)?;
        // A view would keep the oldest row in memory.
        let after = slice_axis(&all, 1, 1, all.dim(1))?.contiguous()?;
        let products = multiply(all.as_dtype(Dtype::Float32)?, &self.all)?;
        Ok((products.sum_axis(1, false)?, after))
    }

    fn run(&self, rows: &Array, before: &Array) -> Result<(Array, Array)> {
        let (count, seen) = (rows.dim(0), self.taps.len() as i32 - 1);
        let all = concatenate(&[&before.squeeze_axes(&[0])?, rows], 0)?;
        // A view would keep all rows in memory.
        let after = slice_axis(&all, 0, count, count + seen)?.contiguous()?.expand_dims(0)?;
        let all = all.as_dtype(Dtype::Float32)?;
        let mut sum: Option<Array> = None;
        for (place, tap) in self.taps.iter().enumerate() {
            let product = multiply(slice_axis(&all, 0, place as i32, place as i32 + count)?, tap)?;
            sum = Some(match sum {
                Some(sum) => add(sum, product)?,
                None => product,
            });
        }
        Ok((sum.unwrap_or(all), after))
    }
}
