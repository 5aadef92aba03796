//! SigLIP 2's tower for pictures of any shape (Tschannen et al., 2025, arXiv:2502.14786), and LFM2-VL's projector, which merges squares of
//! patches into one row each.

mod config;

use mlx_rs::ops::{add, matmul};
use mlx_rs::{Array, Dtype};

pub(super) use self::config::Siglip2Config;
use super::attention::attend;
use super::patches;
use crate::array::slice_axis;
use crate::error::Result;
use crate::model::activation::Activated;
use crate::model::linear::{Linear, Part};
use crate::model::norm::{Norm, NormConfig, NormKind};
use crate::weights::Weights;

/// The tower with its weights.
pub(super) struct Siglip2Tower {
    patch_embedding: Linear,
    /// The positions of a square of patches: `[side, side, hidden]`
    position_embedding: Array,
    layers: Vec<Layer>,
    post_layernorm: Norm,
    dtype: Dtype,
}

/// LFM2-VL's projector with its weights.
pub(super) struct Lfm2Projector {
    /// The side of a square, in patches.
    side: i32,
    layer_norm: Option<Norm>,
    linear_1: Linear,
    activation: Activated,
    linear_2: Linear,
}

struct Layer {
    attention_norm: Norm,
    /// Queries, keys and values.
    projection: Linear,
    output: Linear,
    ffn_norm: Norm,
    fc1: Linear,
    activation: Activated,
    fc2: Linear,
    heads: i32,
}

impl Siglip2Tower {
    /// Loads the tensors under `{name}.`, such as `embeddings.patch_embedding`.
    pub(super) fn load(weights: &mut Weights, name: &str, config: &Siglip2Config) -> Result<Self> {
        let (hidden, patch) = (config.shape.hidden_size, config.shape.patch_size);
        let (side, count) = (config.position_side as i32, config.position_side * config.position_side);
        let patches = Part { name: &format!("{name}.embeddings.patch_embedding"), outputs: hidden };
        let positions = format!("{name}.embeddings.position_embedding.weight");
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for index in 0..config.num_hidden_layers {
            layers.push(Layer::load(weights, &format!("{name}.encoder.layers.{index}"), config)?);
        }
        // The pooling head, which no language model reads.
        weights.skip_all(|name| name.contains("vision_tower.") && name.contains(".head."));
        Ok(Self {
            patch_embedding: Linear::load(weights, &[patches], 3 * patch * patch, true)?,
            position_embedding: weights.take(&positions, &[count, hidden])?.reshape(&[side, side, -1])?,
            layers,
            post_layernorm: Norm::load(weights, &format!("{name}.post_layernorm"), hidden, norm(config))?,
            dtype: weights.dtype(),
        })
    }

    /// Maps the patches of one picture, `[patches, 3 * patch_size^2]`, in a grid of rows and columns, to `[patches, hidden]`.
    pub(super) fn forward(&self, patches: &Array, grid: (usize, usize)) -> Result<Array> {
        let embedded = self.patch_embedding.forward(&patches.as_dtype(self.dtype)?)?;
        let mut hidden = add(embedded, self.positions(grid)?)?;
        for layer in &self.layers {
            hidden = layer.forward(&hidden)?;
            // Evaluating here limits the memory to that of one layer.
            hidden.eval()?;
        }
        self.post_layernorm.forward(&hidden)
    }

    /// Returns the learned positions, resized to the grid of a picture: `[patches, hidden]`.
    fn positions(&self, (rows, columns): (usize, usize)) -> Result<Array> {
        let table = self.position_embedding.as_dtype(Dtype::Float32)?;
        let (side, hidden) = (table.dim(0), table.dim(2));
        let weights =
            |count: usize| Array::from_slice(&interpolation(side as usize, count), &[count as i32, side]);
        let down = matmul(weights(rows), table.reshape(&[side, side * hidden])?)?;
        let both = matmul(weights(columns), down.reshape(&[rows as i32, side, hidden])?)?;
        Ok(both.reshape(&[(rows * columns) as i32, hidden])?.as_dtype(self.dtype)?)
    }
}

/// Returns the weights of `side` positions in each of `count` resized ones, row by row: bilinear, and averaged where the size shrinks.
fn interpolation(side: usize, count: usize) -> Vec<f32> {
    let scale = side as f32 / count as f32;
    let support = scale.max(1.0);
    let row = |index: usize| {
        let center = (index as f32 + 0.5) * scale - 0.5;
        let weight = move |source: usize| (1.0 - (source as f32 - center).abs() / support).max(0.0);
        let sum: f32 = (0..side).map(weight).sum();
        (0..side).map(move |source| weight(source) / sum)
    };
    (0..count).flat_map(row).collect()
}

fn norm(config: &Siglip2Config) -> NormConfig {
    NormConfig { kind: NormKind::LayerWithBias, eps: config.layer_norm_eps }
}

impl Layer {
    fn load(weights: &mut Weights, name: &str, config: &Siglip2Config) -> Result<Self> {
        let (width, inner) = (config.shape.hidden_size, config.shape.intermediate_size);
        let names = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{name}.self_attn.{part}"));
        let parts = names.each_ref().map(|name| Part { name, outputs: width });
        let mut linear = |part: &str, outputs: usize, inputs: usize| {
            Linear::load(weights, &[Part { name: &format!("{name}.{part}"), outputs }], inputs, true)
        };
        Ok(Self {
            output: linear("self_attn.out_proj", width, width)?,
            fc1: linear("mlp.fc1", inner, width)?,
            fc2: linear("mlp.fc2", width, inner)?,
            projection: Linear::load(weights, &parts, width, true)?,
            attention_norm: Norm::load(weights, &format!("{name}.layer_norm1"), width, norm(config))?,
            ffn_norm: Norm::load(weights, &format!("{name}.layer_norm2"), width, norm(config))?,
            activation: Activated::load(weights, name, config.hidden_act)?,
            heads: config.shape.num_heads as i32,
        })
    }

    /// Maps `[patches, hidden]` to the same shape.
    fn forward(&self, input: &Array) -> Result<Array> {
        let (patches, width) = (input.dim(0), input.dim(1));
        let head_dim = width / self.heads;
        let all = self.projection.forward(&self.attention_norm.forward(input)?)?;
        let part = |index: i32| -> Result<Array> {
            let part = slice_axis(&all, 1, index * width, (index + 1) * width)?;
            Ok(part.reshape(&[1, patches, self.heads, head_dim])?.transpose_axes(&[0, 2, 1, 3])?)
        };
        let scale = (head_dim as f32).sqrt().recip();
        let mixed = attend(&part(0)?, &part(1)?, &part(2)?, scale)?;
        let hidden = add(input, self.output.forward(&mixed)?)?;
        let inner = self.activation.forward(&self.fc1.forward(&self.ffn_norm.forward(&hidden)?)?)?;
        Ok(add(&hidden, self.fc2.forward(&inner)?)?)
    }
}

impl Lfm2Projector {
    /// Loads the tensors under `{name}.`, such as `linear_1`.
    pub(super) fn load(weights: &mut Weights, name: &str, config: &Siglip2Config) -> Result<Self> {
        let side = config.shape.spatial_merge_size;
        let (seen, inner) = (config.shape.hidden_size * side * side, config.projector_hidden_size);
        let norm = NormConfig { kind: NormKind::LayerWithBias, eps: 1e-5 };
        let mut linear = |part: &str, outputs: usize, inputs: usize| {
            let name = format!("{name}.{part}");
            Linear::load(weights, &[Part { name: &name, outputs }], inputs, config.projector_bias)
        };
        let (linear_1, linear_2) =
            (linear("linear_1", inner, seen)?, linear("linear_2", config.shape.row_width, inner)?);
        let layer_norm = format!("{name}.layer_norm");
        if !config.projector_use_layernorm {
            // Published files have it, but nothing reads it.
            weights.skip_all(|name| name.contains("multi_modal_projector.layer_norm."));
        }
        let layer_norm = config
            .projector_use_layernorm
            .then(|| Norm::load(weights, &layer_norm, seen, norm))
            .transpose()?;
        let activation = Activated::load(weights, name, config.projector_hidden_act)?;
        Ok(Self { side: side as i32, layer_norm, linear_1, activation, linear_2 })
    }

    /// Maps `[patches, seen]` of a grid of rows and columns to `[squares, text]`.
    pub(super) fn forward(&self, input: &Array, grid: (usize, usize)) -> Result<Array> {
        let squares = patches::squares(input, grid, self.side)?;
        let normed = match &self.layer_norm {
            Some(norm) => norm.forward(&squares)?,
            None => squares,
        };
        self.linear_2.forward(&self.activation.forward(&self.linear_1.forward(&normed)?)?)
    }
}
