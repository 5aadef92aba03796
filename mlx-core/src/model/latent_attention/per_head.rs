//! The per-head matrices into the space of latents and out of it.

use mlx_rs::Array;
use mlx_rs::ops::{concatenate, matmul};

use super::config::LatentConfig;
use crate::array::slice_axis;
use crate::error::Result;
use crate::quantization::QuantizedMatrix;
use crate::weights::Weights;

/// The matrices of all heads.
#[derive(Clone)]
pub(super) enum PerHead {
    /// `[H, input, output]`, possibly a transposed view.
    Dense(Array),
    /// `[H, output, input]`. `broadcast` is the backend's `broadcast_stacks`: true if several steps may share one product.
    Quantized { matrix: QuantizedMatrix, broadcast: bool },
}

impl PerHead {
    /// Maps `[T, H, 1, input]` to `[T, H, 1, output]`. In a decode pass the product of each row is separate, so that its bits do not depend
    /// on the number of rows.
    pub(super) fn forward(&self, input: &Array, is_decode: bool) -> Result<Array> {
        if is_decode {
            return self.multiply_steps(input);
        }
        Ok(self.multiply(&input.transpose_axes(&[2, 1, 0, 3])?)?.transpose_axes(&[2, 1, 0, 3])?)
    }

    /// Maps `[T, H, 1, input]` to `[T, H, 1, output]`, one step at a time if the backend computes joint products wrongly.
    fn multiply_steps(&self, input: &Array) -> Result<Array> {
        let steps = input.dim(0);
        if steps == 1 || !matches!(self, Self::Quantized { broadcast: false, .. }) {
            return self.multiply(input);
        }
        let step = |step| self.multiply(&slice_axis(input, 0, step, step + 1)?);
        let products = (0..steps).map(step).collect::<Result<Vec<_>>>()?;
        Ok(concatenate(&products, 0)?)
    }

    /// Maps `[.., H, rows, input]` to `[.., H, rows, output]`.
    fn multiply(&self, input: &Array) -> Result<Array> {
        match self {
            Self::Dense(weight) => Ok(matmul(input, weight)?),
            Self::Quantized { matrix, .. } => matrix.multiply(input),
        }
    }

    /// Loads `{name}.weight`, `[H, output, input]`. It stays packed if the policy says so.
    fn take(weights: &mut Weights, name: &str, shape: [usize; 3]) -> Result<Self> {
        if let Some(matrix) = weights.take_quantized(&[(name, &shape)])? {
            return Ok(Self::Quantized { matrix, broadcast: weights.backend().broadcast_stacks });
        }
        Ok(Self::Dense(weights.take(&format!("{name}.weight"), &shape)?.swap_axes(1, 2)?))
    }
}

/// Loads the matrices into the space of latents and out of it. mlx-lm stores two; published checkpoints have one that expands latents.
pub(super) fn load(weights: &mut Weights, name: &str, config: LatentConfig) -> Result<(PerHead, PerHead)> {
    let names = ["kv_b_proj", "embed_q", "unembed_out"].map(|part| format!("{name}.{part}"));
    weights.shared(&names.each_ref().map(String::as_str), |weights| take(weights, name, config))
}

fn take(weights: &mut Weights, name: &str, config: LatentConfig) -> Result<(PerHead, PerHead)> {
    let LatentConfig { num_heads, kv_lora_rank, qk_nope_head_dim, v_head_dim, .. } = config;
    if weights.has(&format!("{name}.embed_q.weight")) {
        let embed = [num_heads, kv_lora_rank, qk_nope_head_dim];
        let unembed = [num_heads, v_head_dim, kv_lora_rank];
        return Ok((
            PerHead::take(weights, &format!("{name}.embed_q"), embed)?,
            PerHead::take(weights, &format!("{name}.unembed_out"), unembed)?,
        ));
    }
    let (nope, width) = (qk_nope_head_dim as i32, (qk_nope_head_dim + v_head_dim) as i32);
    let both =
        weights.take(&format!("{name}.kv_b_proj.weight"), &[num_heads * width as usize, kv_lora_rank])?;
    let by_head = both.reshape(&[num_heads as i32, width, kv_lora_rank as i32])?;
    let part = |start, end| -> Result<Array> {
        let part = slice_axis(&by_head, 1, start, end)?.contiguous()?;
        part.eval()?;
        Ok(part)
    };
    Ok((PerHead::Dense(part(0, nope)?), PerHead::Dense(part(nope, width)?.swap_axes(1, 2)?)))
}
