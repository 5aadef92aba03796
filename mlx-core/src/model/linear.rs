//! A projection `y = x W^T + b`. Invariant: dense or packed is decided here and nowhere else.

use mlx_rs::Array;
use mlx_rs::ops::{addmm, concatenate, matmul};

use crate::error::Result;
use crate::weights::Weights;

/// One or more projections of the same input, stacked into a single matrix product.
pub(crate) struct Linear {
    /// `[input, output]`: a transposed view of the checkpoint's `[output, input]`, which costs no copy.
    weight: Array,
    /// `[output]`
    bias: Option<Array>,
}

/// One projection as a checkpoint names it.
pub(crate) struct Part<'a> {
    /// The tensor names are `{name}.weight` and `{name}.bias`.
    pub(crate) name: &'a str,
    pub(crate) outputs: usize,
}

impl Linear {
    /// Takes `parts` and stacks them along the output axis. With `bias`, each part has one.
    pub(crate) fn load(weights: &mut Weights, parts: &[Part], inputs: usize, bias: bool) -> Result<Self> {
        let mut matrices = Vec::with_capacity(parts.len());
        let mut biases = Vec::new();
        for Part { name, outputs } in parts {
            matrices.push(weights.take(&format!("{name}.weight"), &[*outputs, inputs])?);
            if bias {
                biases.push(weights.take(&format!("{name}.bias"), &[*outputs])?);
            }
        }
        let bias = if bias { Some(stack(&biases)?) } else { None };
        Self::new(&stack(&matrices)?, bias)
    }

    /// A projection with a `[output, input]` matrix that is there already, such as a tied embedding.
    pub(crate) fn new(matrix: &Array, bias: Option<Array>) -> Result<Self> {
        Ok(Self { weight: matrix.swap_axes(0, 1)?, bias })
    }

    /// The same projection with its outputs in another order.
    pub(crate) fn reordered(self, outputs: &[i32]) -> Result<Self> {
        let order = Array::from_slice(outputs, &[outputs.len() as i32]);
        let matrix = self.weight.swap_axes(0, 1)?.take_axis(&order, 0)?;
        matrix.eval()?;
        let bias = self.bias.map(|bias| bias.take_axis(&order, 0)).transpose()?;
        Self::new(&matrix, bias)
    }

    /// `[..., input]` to `[..., output]`.
    pub(crate) fn forward(&self, input: &Array) -> Result<Array> {
        Ok(match &self.bias {
            None => matmul(input, &self.weight)?,
            Some(bias) => addmm(bias, input, &self.weight, None, None)?,
        })
    }
}

fn stack(parts: &[Array]) -> Result<Array> {
    if let [only] = parts {
        return Ok(only.clone());
    }
    let stacked = concatenate(parts, 0)?;
    stacked.eval()?;
    Ok(stacked)
}
