//! A matrix with bounds of its input and output, which the checkpoint stores next to it.

use mlx_rs::Array;
use mlx_rs::ops::{maximum, minimum};

use crate::error::Result;
use crate::model::linear::{Linear, Part};
use crate::weights::Weights;

pub(crate) struct ClippedLinear {
    linear: Linear,
    /// The minimum and the maximum of the input and of the output.
    bounds: Option<[[Array; 2]; 2]>,
}

impl ClippedLinear {
    /// Loads `{name}.linear`. With `clipped`, it also loads the bounds, such as `{name}.input_min`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        outputs: usize,
        inputs: usize,
        clipped: bool,
    ) -> Result<Self> {
        let part = Part { name: &format!("{name}.linear"), outputs };
        let linear = Linear::load(weights, &[part], inputs, false)?;
        let mut bound = |part: &str| weights.take(&format!("{name}.{part}"), &[]);
        let bounds = clipped.then(|| {
            Ok::<_, crate::Error>([
                [bound("input_min")?, bound("input_max")?],
                [bound("output_min")?, bound("output_max")?],
            ])
        });
        Ok(Self { linear, bounds: bounds.transpose()? })
    }

    /// Maps `[rows, input]` to `[rows, output]`.
    pub(super) fn forward(&self, input: &Array) -> Result<Array> {
        let Some([before, behind]) = &self.bounds else { return self.linear.forward(input) };
        clip(&self.linear.forward(&clip(input, before)?)?, behind)
    }
}

fn clip(rows: &Array, [least, greatest]: &[Array; 2]) -> Result<Array> {
    Ok(minimum(maximum(rows, least)?, greatest)?)
}
