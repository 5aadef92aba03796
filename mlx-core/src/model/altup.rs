//! Alternating updates of several residual streams (AltUp; Baykal et al., 2023, arXiv:2301.13310), as in Gemma 3n. A layer computes one of the
//! streams. The others are predicted before the layer and corrected after it, by coefficients that depend on the token. A branch of low rank
//! (LAuReL; Menghani et al., 2024, arXiv:2411.07501) is added to attention.

use mlx_rs::ops::{add, concatenate, divide, matmul, maximum, multiply, sqrt, square, subtract, tanh};
use mlx_rs::{Array, Dtype};

use super::linear::{Linear, Part};
use super::norm::{Norm, NormConfig};
use crate::array::{scalar_like, slice_axis};
use crate::error::Result;
use crate::weights::Weights;

/// The shape of alternating updates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AltUpConfig {
    /// The number of streams.
    pub altup_num_inputs: usize,
    /// The index of the stream that layers compute.
    pub altup_active_idx: usize,
    /// True if the corrected stream is scaled by `correct_output_scale` before it is gated by the per-layer input.
    pub altup_correct_scale: bool,
    /// The width of the branch next to attention.
    pub laurel_rank: usize,
    /// The config of all norms.
    pub norm: NormConfig,
}

/// The weights of one layer.
pub(super) struct AltUp {
    config: AltUpConfig,
    router_norm: Norm,
    modality_router: Linear,
    prediction_coefs: Linear,
    correction_coefs: Linear,
    /// `[hidden]`
    correct_output_scale: Option<Array>,
    laurel: [Linear; 2],
    post_laurel_norm: Norm,
    hidden: i32,
}

/// The streams of a layer after its prediction.
pub(super) struct Streams {
    /// `[T, streams, hidden]`
    predictions: Array,
    /// `[T, hidden]`
    pub(super) active: Array,
}

impl AltUp {
    /// Loads the tensors under `{name}.`, for streams of width `hidden`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: AltUpConfig,
    ) -> Result<Self> {
        let AltUpConfig { altup_num_inputs: count, laurel_rank: rank, norm, .. } = config;
        let mut linear = |part: &str, outputs: usize, inputs: usize| {
            Linear::load(weights, &[Part { name: &format!("{name}.{part}"), outputs }], inputs, false)
        };
        let (modality_router, prediction_coefs, correction_coefs) = (
            linear("altup.modality_router", count, hidden)?,
            linear("altup.prediction_coefs", count * count, count)?,
            linear("altup.correction_coefs", count, count)?,
        );
        let laurel =
            [linear("laurel.linear_left", rank, hidden)?, linear("laurel.linear_right", hidden, rank)?];
        let scale = weights.take(&format!("{name}.altup.correct_output_scale"), &[hidden])?;
        Ok(Self {
            config,
            router_norm: Norm::load(weights, &format!("{name}.altup.router_norm"), hidden, norm)?,
            modality_router,
            prediction_coefs,
            correction_coefs,
            correct_output_scale: config.altup_correct_scale.then_some(scale),
            laurel,
            post_laurel_norm: Norm::load(weights, &format!("{name}.laurel.post_laurel_norm"), hidden, norm)?,
            hidden: hidden as i32,
        })
    }

    /// Predicts the streams after this layer from the streams before it, `[T, streams * hidden]`.
    pub(super) fn predict(&self, input: &Array) -> Result<Streams> {
        let (rows, count) = (input.dim(0), self.config.altup_num_inputs as i32);
        let streams = input.reshape(&[rows, count, self.hidden])?;
        let coefs = self.prediction_coefs.forward(&self.modalities(&self.active(&streams)?)?)?;
        let predictions = add(matmul(coefs.reshape(&[rows, count, count])?, &streams)?, &streams)?;
        Ok(Streams { active: self.active(&predictions)?, predictions })
    }

    /// Adds the branch of low rank to the stream after attention, and halves the variance. `normed` is the input of attention.
    pub(super) fn augmented(&self, normed: &Array, attended: &Array) -> Result<Array> {
        let [left, right] = &self.laurel;
        let branch = self.post_laurel_norm.forward(&right.forward(&left.forward(normed)?)?)?;
        let sum = add(attended, add(normed, branch)?)?;
        Ok(divide(&sum, scalar_like(2.0_f32.sqrt(), &sum)?)?)
    }

    /// Corrects all streams by the output of the layer, `[T, hidden]`. Returns them, and the corrected active stream, scaled.
    pub(super) fn correct(&self, streams: &Streams, output: &Array) -> Result<(Array, Array)> {
        let (rows, count) = (output.dim(0), self.config.altup_num_inputs as i32);
        let coefs = self.correction_coefs.forward(&self.modalities(output)?)?;
        let coefs = add(&coefs, scalar_like(1.0, &coefs)?)?.reshape(&[rows, count, 1])?;
        let innovation = subtract(output, &streams.active)?.reshape(&[rows, 1, self.hidden])?;
        let corrected = add(multiply(coefs, innovation)?, &streams.predictions)?;
        let active = self.active(&corrected)?;
        let scaled = match &self.correct_output_scale {
            Some(scale) => multiply(active, scale)?,
            None => active,
        };
        Ok((corrected, scaled))
    }

    /// Adds the layer's output for a token, `[T, hidden]`, to all streams except the first one. Returns `[T, streams * hidden]`.
    pub(super) fn joined(&self, corrected: &Array, of_token: Option<&Array>) -> Result<Array> {
        let (rows, count) = (corrected.dim(0), self.config.altup_num_inputs as i32);
        let all = match of_token {
            Some(of_token) => {
                let first = slice_axis(corrected, 1, 0, 1)?;
                let others = slice_axis(corrected, 1, 1, count)?;
                concatenate(&[first, add(others, of_token.reshape(&[rows, 1, self.hidden])?)?], 1)?
            }
            None => corrected.clone(),
        };
        Ok(all.reshape(&[rows, count * self.hidden])?)
    }

    /// Returns the active stream of `[T, streams, hidden]`.
    fn active(&self, streams: &Array) -> Result<Array> {
        let index = self.config.altup_active_idx as i32;
        Ok(slice_axis(streams, 1, index, index + 1)?.squeeze_axes(&[1])?)
    }

    /// Returns numbers from -1 to 1 for each stream, `[T, streams]`, by the stream that layers compute.
    fn modalities(&self, active: &Array) -> Result<Array> {
        let normed = self.router_norm.forward(active)?;
        let scaled = multiply(&normed, scalar_like((self.hidden as f32).recip(), &normed)?)?;
        Ok(tanh(self.modality_router.forward(&scaled)?)?)
    }
}

/// The projections between an embedding and the streams.
pub(super) struct AltUpEnds {
    before: Vec<Linear>,
    after: Vec<Linear>,
}

impl AltUpEnds {
    /// Loads `model.altup_projections` and `model.altup_unembed_projections`.
    pub(super) fn load(weights: &mut Weights, hidden: usize, config: AltUpConfig) -> Result<Self> {
        let mut all = |name: &str| {
            (1..config.altup_num_inputs)
                .map(|index| {
                    let name = format!("model.{name}.{}", index - 1);
                    Linear::load(weights, &[Part { name: &name, outputs: hidden }], hidden, false)
                })
                .collect::<Result<Vec<_>>>()
        };
        Ok(Self { before: all("altup_projections")?, after: all("altup_unembed_projections")? })
    }

    /// Maps embeddings `[T, hidden]` to streams, `[T, streams * hidden]`.
    pub(super) fn split(&self, embedded: &Array) -> Result<Array> {
        let size = magnitude(embedded)?;
        let mut streams = vec![embedded.clone()];
        for projection in &self.before {
            streams.push(resized(&projection.forward(embedded)?, &size)?);
        }
        Ok(concatenate(&streams, 1)?)
    }

    /// Maps streams `[R, streams * hidden]` to their mean after projections, `[R, hidden]`.
    pub(super) fn mean(&self, streams: &Array) -> Result<Array> {
        let count = self.after.len() as i32 + 1;
        let hidden = streams.dim(1) / count;
        let stream = |index: i32| slice_axis(streams, 1, index * hidden, (index + 1) * hidden);
        let mut sum = stream(0)?;
        let size = magnitude(&sum)?;
        for (index, projection) in self.after.iter().enumerate() {
            sum = add(&sum, resized(&projection.forward(&stream(index as i32 + 1)?)?, &size)?)?;
        }
        Ok(divide(&sum, scalar_like(count as f32, &sum)?)?)
    }
}

/// Returns the root mean square of each row, `[T, 1]` of f32. Squares of halves would overflow.
fn magnitude(rows: &Array) -> Result<Array> {
    Ok(sqrt(square(rows.as_dtype(Dtype::Float32)?)?.mean_axis(-1, true)?)?)
}

/// Scales rows to the root mean square `size`.
fn resized(rows: &Array, size: &Array) -> Result<Array> {
    let mean = square(rows.as_dtype(Dtype::Float32)?)?.mean_axis(-1, true)?;
    let factor = divide(size, sqrt(maximum(&mean, scalar_like(1e-5, &mean)?)?)?)?;
    Ok(multiply(rows.as_dtype(Dtype::Float32)?, factor)?.as_dtype(rows.dtype())?)
}
