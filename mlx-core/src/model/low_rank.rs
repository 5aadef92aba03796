//! The change that an adapter makes to a module: a product of two small matrices (LoRA, Hu et al., 2021, arXiv:2106.09685), and a learned
//! magnitude for each output (DoRA, Liu et al., 2024, arXiv:2402.09353). Values and types match mlx-lm's.

use mlx_rs::ops::{
    add, concatenate, divide, gather_mm, matmul, multiply, sqrt, square, sum_axis, zeros_dtype,
};
use mlx_rs::{Array, Dtype};

use crate::adapter::Target;
use crate::array::{scalar_like, slice_axis};
use crate::error::Result;
use crate::weights::{Factors, Shard, Weights};

/// A low-rank change: `scale * (x first) second`.
#[derive(Clone)]
pub(crate) struct LowRank {
    /// `[.., input, rank]`
    first: Array,
    /// `[.., rank, output]`
    second: Array,
    scale: f32,
    /// The number of outputs of each part, and their magnitudes, `[output]`, if it has them.
    magnitudes: Vec<(usize, Option<Array>)>,
    /// `[output]`: magnitudes divided by the norms of the changed rows, once these are computed; 1 for outputs without magnitudes.
    ratio: Option<Array>,
}

/// The number of outputs of a part, and its factors.
type PartFactors = (usize, Option<Factors>);

impl LowRank {
    /// Loads the change of the projections `parts`, if there is one. Their outputs are stacked. Each part has a name, a number of outputs,
    /// and the order of the outputs if it differs from the files.
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

    /// Loads the change of the projections of all experts, as `take` does. Each part has one name for every convention of adapter tools.
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
                    // In the type of the experts' weights.
                    let held = if weights.backend().half_experts { factor.dtype() } else { Dtype::Float32 };
                    *factor = factor.swap_axes(1, 2)?.as_dtype(held)?;
                }
            }
            pieces.push((*outputs, factors));
        }
        Self::of(weights, pieces, 2)
    }

    /// Loads the change of the table `name`, `[rows, width]`, if there is one.
    pub(super) fn take_embedding(
        weights: &mut Weights,
        name: &str,
        rows: usize,
        width: usize,
    ) -> Result<Option<Self>> {
        let factors = weights.take_factors(&[name], Target::Embedding { rows, width })?;
        Self::of(weights, vec![(width, factors)], 1)
    }

    /// Combines the pieces: the first factors side by side, the second ones as a block diagonal. `axis` is the axis of outputs.
    fn of(weights: &mut Weights, pieces: Vec<PartFactors>, axis: i32) -> Result<Option<Self>> {
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

    /// Returns true if outputs have magnitudes, which [`LowRank::with_dora_ratio`] needs.
    pub(super) fn has_magnitudes(&self) -> bool {
        self.magnitudes.iter().any(|(_, magnitudes)| magnitudes.is_some())
    }

    /// Returns true if outputs are multiplied, before a bias is added.
    pub(super) fn has_dora_ratio(&self) -> bool {
        self.ratio.is_some()
    }

    /// Computes the ratio of magnitudes to the norms of the rows of `weight`, `[output, input]`, after the change. With `shard`, each machine
    /// has some of the inputs.
    pub(super) fn with_dora_ratio(self, weight: &Array, shard: Option<&Shard>) -> Result<Self> {
        let second = self.second.swap_axes(0, 1)?;
        let scaled = multiply(&second, scalar_like(self.scale, &second)?)?;
        let changed = add(weight, matmul(scaled, self.first.swap_axes(0, 1)?)?)?;
        let squares = sum_axis(square(changed)?, 1, false)?;
        let lengths = sqrt(shard.map_or(Ok(squares.clone()), |shard| shard.sum(&squares))?)?;
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

    /// Adds the change to `output`, the module's output for `input`, `[.., input]`. If there are magnitudes, `output` must not include the
    /// bias.
    pub(super) fn apply(&self, input: &Array, output: Array) -> Result<Array> {
        self.with_magnitudes(input, self.added(input, output)?)
    }

    /// Adds the change to `output` without magnitudes.
    pub(super) fn added(&self, input: &Array, output: Array) -> Result<Array> {
        let change = matmul(matmul(input, &self.first)?, &self.second)?;
        Ok(add(output, self.scaled(&change, input.dtype())?)?)
    }

    /// Applies the magnitudes, if there are any, to a changed output for `input`.
    pub(super) fn with_magnitudes(&self, input: &Array, output: Array) -> Result<Array> {
        match &self.ratio {
            Some(ratio) => Ok(multiply(ratio.as_dtype(input.dtype())?, output)?),
            None => Ok(output),
        }
    }

    /// Adds the change to rows `[.., 1, input]` of the experts `chosen`. `sorted` is true if the experts are in ascending order.
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

    /// Adds the change to rows of an embedding with these indices, `[R, width]`.
    pub(super) fn added_to_rows(&self, indices: &Array, rows: &Array) -> Result<Array> {
        let change = matmul(self.first.take_axis(indices, 0)?, &self.second)?;
        Ok(add(rows, self.scaled(&change, rows.dtype())?)?)
    }

    /// Returns the change of a head that is tied to this embedding.
    pub(super) fn of_head(&self) -> Result<Self> {
        let (first, second) = (self.second.swap_axes(0, 1)?, self.first.swap_axes(0, 1)?);
        Ok(Self { first, second, ..self.clone() })
    }

    fn scaled(&self, change: &Array, dtype: Dtype) -> Result<Array> {
        Ok(multiply(change, scalar_like(self.scale, change)?)?.as_dtype(dtype)?)
    }
}

/// Pads a second factor with zero columns on both sides.
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

/// Concatenates the parts along `axis` and evaluates the result.
fn joined(parts: &[Array], axis: i32) -> Result<Array> {
    let joined = if let [only] = parts { only.contiguous()? } else { concatenate(parts, axis)? };
    joined.eval()?;
    Ok(joined)
}
