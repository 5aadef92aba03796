//! What an adapter adds to a module: a product of two small matrices (LoRA, Hu et al., 2021, arXiv:2106.09685), and magnitudes of its own
//! for each output (DoRA, Liu et al., 2024, arXiv:2402.09353). The numbers are those of mlx-lm, types included.

use mlx_rs::ops::{
    add, concatenate, divide, gather_mm, matmul, multiply, sqrt, square, sum_axis, zeros_dtype,
};
use mlx_rs::{Array, Dtype};

use crate::adapter::Target;
use crate::array::{scalar_like, slice_axis};
use crate::error::Result;
use crate::weights::{Factors, Weights};

/// A change of low rank: `scale * (x first) second`.
#[derive(Clone)]
pub(crate) struct LowRank {
    /// `[.., input, rank]`
    first: Array,
    /// `[.., rank, output]`
    second: Array,
    scale: f32,
    /// The outputs of each part, and their magnitudes, `[output]`, where they have some.
    magnitudes: Vec<(usize, Option<Array>)>,
    /// `[output]`: magnitudes over the lengths of the changed rows, once they are measured; 1 for outputs without magnitudes.
    ratio: Option<Array>,
}

/// The factors of a part and the part's outputs.
type Piece = (usize, Option<Factors>);

impl LowRank {
    /// Takes what changes the projections `parts`, whose outputs stand one above the other, if anything does: each with its name, its
    /// number of outputs, and their order if it is not that of the files.
    pub(super) fn take(
        weights: &mut Weights,
        parts: &[(&str, usize, Option<Array>)],
        inputs: usize,
    ) -> Result<Option<Self>> {
        let mut pieces = Vec::with_capacity(parts.len());
        for (name, outputs, order) in parts {
            let target = Target::Linear { inputs, outputs: *outputs };
            let mut factors = weights.take_factors(&[name], target)?;
            if let (Some(factors), Some(order)) = (&mut factors, order) {
                factors.second = factors.second.take_axis(order, 1)?;
                factors.magnitude =
                    factors.magnitude.as_ref().map(|values| values.take_axis(order, 0)).transpose()?;
            }
            pieces.push((*outputs, factors));
        }
        Self::of(weights, pieces, 1)
    }

    /// Takes what changes the projections of all experts with these names, one name for each place where tools put them, as `take` does.
    pub(super) fn take_experts(
        weights: &mut Weights,
        parts: &[(Vec<String>, usize)],
        count: usize,
        inputs: usize,
    ) -> Result<Option<Self>> {
        let mut pieces = Vec::with_capacity(parts.len());
        for (names, outputs) in parts {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let target = Target::Experts { count, inputs, outputs: *outputs };
            let mut factors = weights.take_factors(&names, target)?;
            if let Some(factors) = &mut factors {
                for factor in [&mut factors.first, &mut factors.second] {
                    // As for the experts themselves.
                    let held = if weights.backend().half_experts { factor.dtype() } else { Dtype::Float32 };
                    *factor = factor.swap_axes(1, 2)?.as_dtype(held)?;
                }
            }
            pieces.push((*outputs, factors));
        }
        Self::of(weights, pieces, 2)
    }

    /// Takes what changes the table `name`, `[rows, width]`, if anything does.
    pub(super) fn take_embedding(
        weights: &mut Weights,
        name: &str,
        rows: usize,
        width: usize,
    ) -> Result<Option<Self>> {
        let factors = weights.take_factors(&[name], Target::Embedding { rows, width })?;
        Self::of(weights, vec![(width, factors)], 1)
    }

    /// Side by side: the first factors next to each other, the second ones on a diagonal of blocks. `axis` is that of outputs.
    fn of(weights: &mut Weights, pieces: Vec<Piece>, axis: i32) -> Result<Option<Self>> {
        let all: usize = pieces.iter().map(|(outputs, _)| outputs).sum();
        let (mut firsts, mut seconds, mut magnitudes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut scale, mut before) = (1.0, 0);
        for (outputs, factors) in pieces {
            let start = before;
            before += outputs;
            magnitudes.push((outputs, factors.as_ref().and_then(|factors| factors.magnitude.clone())));
            let Some(Factors { first, second, scale: factor, .. }) = factors else { continue };
            scale = factor;
            seconds.push(widened(&second, start, all - before, axis)?);
            firsts.push(first);
        }
        if firsts.is_empty() {
            return Ok(None);
        }
        let (first, second) = (joined(&firsts, axis)?, joined(&seconds, axis - 1)?);
        weights.hold(first.nbytes() + second.nbytes());
        Ok(Some(Self { first, second, scale, magnitudes, ratio: None }))
    }

    /// Whether outputs have magnitudes, which [`LowRank::measured`] makes use of.
    pub(super) fn has_magnitudes(&self) -> bool {
        self.magnitudes.iter().any(|(_, magnitudes)| magnitudes.is_some())
    }

    /// Whether outputs are multiplied, before a bias is added.
    pub(super) fn has_ratio(&self) -> bool {
        self.ratio.is_some()
    }

    /// The same with the ratio of magnitudes to the lengths of the rows of `weight`, `[output, input]`, as they are changed.
    pub(super) fn measured(self, weight: &Array) -> Result<Self> {
        let second = self.second.swap_axes(0, 1)?;
        let scaled = multiply(&second, scalar_like(self.scale, &second)?)?;
        let changed = add(weight, matmul(scaled, self.first.swap_axes(0, 1)?)?)?;
        let lengths = sqrt(sum_axis(square(changed)?, 1, false)?)?;
        let (mut ratios, mut start) = (Vec::with_capacity(self.magnitudes.len()), 0);
        for (outputs, magnitudes) in &self.magnitudes {
            let lengths = slice_axis(&lengths, 0, start, start + *outputs as i32)?;
            ratios.push(match magnitudes {
                Some(magnitudes) => divide(magnitudes, &lengths)?,
                None => Array::from_slice(&vec![1.0_f32; *outputs], &[*outputs as i32]),
            });
            start += *outputs as i32;
        }
        Ok(Self { ratio: Some(joined(&ratios, 0)?), magnitudes: Vec::new(), ..self })
    }

    /// `output` of the module for `input`, `[.., input]`, with the change; without the bias where there are magnitudes.
    pub(super) fn added(&self, input: &Array, output: Array) -> Result<Array> {
        let change = matmul(matmul(input, &self.first)?, &self.second)?;
        let output = add(output, self.scaled(&change, input.dtype())?)?;
        match &self.ratio {
            Some(ratio) => Ok(multiply(ratio.as_dtype(input.dtype())?, output)?),
            None => Ok(output),
        }
    }

    /// The same for rows `[.., 1, input]` through the experts `chosen`; `sorted` says that experts rise.
    pub(super) fn added_by_expert(
        &self,
        input: &Array,
        output: Array,
        chosen: &Array,
        sorted: bool,
    ) -> Result<Array> {
        let inner = gather_mm(input, &self.first, None, chosen, sorted)?;
        let change = gather_mm(inner, &self.second, None, chosen, sorted)?;
        Ok(add(output, self.scaled(&change, input.dtype())?)?)
    }

    /// The rows of an embedding with these indices, `[R, width]`, with the change.
    pub(super) fn added_to_rows(&self, indices: &Array, rows: &Array) -> Result<Array> {
        let change = matmul(self.first.take_axis(indices, 0)?, &self.second)?;
        Ok(add(rows, self.scaled(&change, rows.dtype())?)?)
    }

    /// The change of a head that is this embedding.
    pub(super) fn of_head(&self) -> Result<Self> {
        let (first, second) = (self.second.swap_axes(0, 1)?, self.first.swap_axes(0, 1)?);
        Ok(Self { first, second, ..self.clone() })
    }

    fn scaled(&self, change: &Array, dtype: Dtype) -> Result<Array> {
        Ok(multiply(change, scalar_like(self.scale, change)?)?.as_dtype(dtype)?)
    }
}

/// A second factor with columns of zeros on both sides.
fn widened(second: &Array, before: usize, behind: usize, axis: i32) -> Result<Array> {
    let zeros = |width: usize| -> Result<Array> {
        let mut shape = second.shape().to_vec();
        shape[axis as usize] = width as i32;
        Ok(zeros_dtype(&shape, second.dtype())?)
    };
    let mut pieces = Vec::with_capacity(3);
    if before > 0 {
        pieces.push(zeros(before)?);
    }
    pieces.push(second.clone());
    if behind > 0 {
        pieces.push(zeros(behind)?);
    }
    joined(&pieces, axis)
}

/// The parts in one along `axis`, computed.
fn joined(parts: &[Array], axis: i32) -> Result<Array> {
    let joined = if let [only] = parts { only.contiguous()? } else { concatenate(parts, axis)? };
    joined.eval()?;
    Ok(joined)
}
