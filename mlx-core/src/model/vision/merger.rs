//! The projector of Mistral 3: it merges squares of patches into one row each, and applies two matrices.

use mlx_rs::Array;

use super::config::PixtralConfig;
use super::footprint::Shape;
use crate::error::Result;
use crate::model::activation::Activated;
use crate::model::linear::{Linear, Part};
use crate::model::norm::{Norm, NormConfig, NormKind};
use crate::weights::Weights;

/// The projector with its weights.
pub(super) struct Projector {
    norm: Norm,
    merging_layer: Linear,
    /// The side of a square, in patches.
    side: i32,
    linear_1: Linear,
    activation: Activated,
    linear_2: Linear,
}

impl Projector {
    /// Loads the tensors under `{name}.`, such as `norm`.
    pub(super) fn load(weights: &mut Weights, name: &str, config: &PixtralConfig) -> Result<Self> {
        let Shape { hidden_size: seen, row_width: text, spatial_merge_size: side, .. } = config.shape;
        let norm = NormConfig { kind: NormKind::Rms, eps: config.rms_norm_eps };
        let mut linear = |part: &str, outputs: usize, inputs: usize, bias: bool| {
            Linear::load(weights, &[Part { name: &format!("{name}.{part}"), outputs }], inputs, bias)
        };
        let bias = config.multimodal_projector_bias;
        Ok(Self {
            merging_layer: linear("patch_merger.merging_layer", seen, seen * side * side, false)?,
            linear_1: linear("linear_1", text, seen, bias)?,
            linear_2: linear("linear_2", text, text, bias)?,
            norm: Norm::load(weights, &format!("{name}.norm"), seen, norm)?,
            side: side as i32,
            activation: Activated::load(weights, name, config.projector_hidden_act)?,
        })
    }

    /// Maps `[patches, seen]` of a grid of rows and columns to `[squares, text]`.
    pub(super) fn forward(&self, input: &Array, (rows, columns): (usize, usize)) -> Result<Array> {
        let (side, width) = (self.side, input.dim(1));
        let (rows, columns) = (rows as i32 / side, columns as i32 / side);
        // The numbers of a square are ordered by the index in a patch first, then by patch.
        let squares = self
            .norm
            .forward(input)?
            .reshape(&[rows, side, columns, side, width])?
            .transpose_axes(&[0, 2, 4, 1, 3])?
            .reshape(&[rows * columns, width * side * side])?;
        let hidden = self.linear_1.forward(&self.merging_layer.forward(&squares)?)?;
        self.linear_2.forward(&self.activation.forward(&hidden)?)
    }
}
