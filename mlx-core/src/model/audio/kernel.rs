//! The kernels of convolutions over time and frequency.

use mlx_rs::Array;

use crate::error::Result;
use crate::weights::Weights;

/// The frames and bins that a kernel reads.
const SIDE: usize = 3;

/// Loads a kernel as `[outputs, 3, 3, inputs]`. transformers' files have its sides last, those of MLX in the middle.
pub(super) fn load(weights: &mut Weights, tensor: &str, [outputs, inputs]: [usize; 2]) -> Result<Array> {
    let published = [outputs, inputs, SIDE, SIDE];
    let kernel = if weights.shape(tensor).is_some_and(|shape| shape == published) {
        weights.take(tensor, &published)?.transpose_axes(&[0, 2, 3, 1])?.contiguous()?
    } else {
        weights.take(tensor, &[outputs, SIDE, SIDE, inputs])?
    };
    kernel.eval()?;
    Ok(kernel)
}
