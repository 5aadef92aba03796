//! The vision embedder of the Gemma 4 model without a tower: one matrix maps each square of pixels to a row, and each axis has learned
//! positions.

use mlx_rs::ops::add;
use mlx_rs::{Array, Dtype};

use super::config::bounded;
use super::footprint::Shape;
use crate::array::slice_axis;
use crate::config::Fields;
use crate::error::{Error, Result};
use crate::model::linear::{Linear, Part};
use crate::model::norm::{Norm, NormConfig, NormKind};
use crate::weights::Weights;

/// The config of its three norms, regardless of config.json.
const NORM: NormConfig = NormConfig { kind: NormKind::LayerWithBias, eps: 1e-5 };

/// The maximum of numbers per row and positions per side in a config.
const WIDEST: usize = 1 << 20;

/// The config of the embedder.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct UnifiedConfig {
    /// The sizes. Patches are the squares that become rows. Rows have the width of the text's embeddings.
    pub(super) shape: Shape,
    mm_embed_dim: usize,
    mm_posemb_size: usize,
    /// The norm before the projection.
    norm: NormConfig,
}

impl UnifiedConfig {
    /// Reads `vision_config`. Its rows must have the width of the text.
    pub(super) fn read(vision: &Fields, text: &Fields) -> Result<Self> {
        let width = |key: &str, usual: usize| match vision.optional_size(key)?.unwrap_or(usual) {
            size if size <= WIDEST => Ok(size),
            size => Err(vision.error(key, format_args!("is {size}; at most {WIDEST} are supported"))),
        };
        let side = bounded(vision, "patch_size", 16)? * bounded(vision, "pooling_kernel_size", 3)?;
        match vision.optional_size("model_patch_size")? {
            Some(other) if other != side => {
                let message = format_args!("is {other}; it must be patch_size * pooling_kernel_size, {side}");
                return Err(vision.error("model_patch_size", message));
            }
            _ => {}
        }
        let mm_embed_dim = width("mm_embed_dim", 3840)?;
        let inputs = width("output_proj_dims", 3840)?;
        if inputs != mm_embed_dim {
            let message = format_args!("is {inputs}; it must be mm_embed_dim, {mm_embed_dim}");
            return Err(vision.error("output_proj_dims", message));
        }
        Ok(Self {
            shape: Shape {
                patch_size: side,
                spatial_merge_size: 1,
                hidden_size: mm_embed_dim,
                intermediate_size: 3 * side * side,
                num_heads: 0,
                row_width: text.optional_size("hidden_size")?.unwrap_or(2304),
            },
            mm_embed_dim,
            mm_posemb_size: width("mm_posemb_size", 1120)?,
            norm: NormConfig {
                kind: NormKind::Rms,
                eps: vision.optional_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            },
        })
    }
}

/// The embedder with its projector.
pub(super) struct UnifiedEmbedder {
    config: UnifiedConfig,
    patch_ln1: Norm,
    patch_dense: Linear,
    patch_ln2: Norm,
    /// The tables of columns and of rows: `[positions, 2, width]`
    pos_embedding: Array,
    pos_norm: Norm,
    projection: Linear,
    dtype: Dtype,
}

impl UnifiedEmbedder {
    /// Loads the tensors under `{name}.`, such as `patch_dense`, and `{projector}.embedding_projection`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        projector: &str,
        config: &UnifiedConfig,
    ) -> Result<Self> {
        let (width, pixels) = (config.mm_embed_dim, config.shape.intermediate_size);
        let mut norm = |part: &str, width: usize| Norm::load(weights, &format!("{name}.{part}"), width, NORM);
        let (patch_ln1, patch_ln2, pos_norm) =
            (norm("patch_ln1", pixels)?, norm("patch_ln2", width)?, norm("pos_norm", width)?);
        let dense = Part { name: &format!("{name}.patch_dense"), outputs: width };
        let output =
            Part { name: &format!("{projector}.embedding_projection"), outputs: config.shape.row_width };
        let positions = [config.mm_posemb_size, 2, width];
        Ok(Self {
            patch_ln1,
            patch_dense: Linear::load(weights, &[dense], pixels, true)?,
            patch_ln2,
            pos_embedding: weights.take(&format!("{name}.pos_embedding"), &positions)?,
            pos_norm,
            projection: Linear::load(weights, &[output], width, false)?,
            dtype: weights.dtype(),
            config: config.clone(),
        })
    }

    /// Maps the squares of one picture, `[squares, 3 * side^2]`, in a grid of rows and columns, to `[squares, text]`.
    pub(super) fn forward(&self, squares: &Array, grid: (usize, usize)) -> Result<Array> {
        let normed = self.patch_ln1.forward(&squares.as_dtype(self.dtype)?)?;
        let hidden = self.patch_ln2.forward(&self.patch_dense.forward(&normed)?)?;
        let hidden = self.pos_norm.forward(&add(hidden, self.positions(grid)?)?)?;
        self.projection.forward(&self.config.norm.plain(&hidden)?)
    }

    /// Returns the learned positions of all squares, `[squares, width]`.
    fn positions(&self, (rows, columns): (usize, usize)) -> Result<Array> {
        let (most, width) = (self.config.mm_posemb_size, self.config.mm_embed_dim as i32);
        if rows.max(columns) > most {
            let message =
                format!("has {columns} x {rows} squares; the model has positions for {most} per side");
            return Err(Error::request("image", message));
        }
        let (rows, columns) = (rows as i32, columns as i32);
        let axis = |index: i32, count: i32| -> Result<Array> {
            slice_axis(&slice_axis(&self.pos_embedding, 0, 0, count)?, 1, index, index + 1)
        };
        let across = axis(0, columns)?.reshape(&[1, columns, width])?;
        Ok(add(across, axis(1, rows)?)?.reshape(&[rows * columns, width])?)
    }
}
