//! Qwen's tower (Bai et al., 2025, arXiv:2511.21631), of Qwen3-VL and Qwen 3.5: learned positions, rope over rows and columns, and squares
//! of patches that become one row. In Qwen3-VL, features of middle layers are added to the output of the first layers of the text.

use mlx_rs::Array;
use mlx_rs::ops::{add, concatenate, matmul, multiply};

use super::attention::Attention;
use super::axial_rope::AxialRope;
use super::config::{activation, bounded};
use super::footprint::Shape;
use super::patches;
use crate::config::Fields;
use crate::error::Result;
use crate::model::activation::{Activated, Activation};
use crate::model::embedding::Embedding;
use crate::model::linear::{Linear, Part};
use crate::model::norm::{Norm, NormConfig, NormKind};
use crate::weights::Weights;

/// The config of all norms of the tower, regardless of config.json.
const NORM: NormConfig = NormConfig { kind: NormKind::LayerWithBias, eps: 1e-6 };

/// The theta of rope, regardless of config.json.
const THETA: f32 = 10_000.0;

/// The config of the tower.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct QwenConfig {
    /// The sizes. A row has an embedding of the text and the features for its first layers.
    pub(super) shape: Shape,
    depth: usize,
    temporal_patch_size: usize,
    /// The number of learned positions per side of their square.
    positions: usize,
    hidden_act: Activation,
    /// The width of the text's embeddings.
    out_hidden_size: usize,
    /// The layers with features that are added to the output of the first layers of the text.
    deepstack_visual_indexes: Vec<usize>,
}

impl QwenConfig {
    /// Reads the `vision_config` of a family. It must fit the text.
    pub(super) fn read(family: &str, vision: &Fields, text: &Fields) -> Result<Self> {
        let (hidden_size, num_heads) =
            (bounded(vision, "hidden_size", 1152)?, bounded(vision, "num_heads", 16)?);
        if !hidden_size.is_multiple_of(4 * num_heads) {
            let message = "must divide hidden_size into heads whose width is a multiple of 4";
            return Err(vision.error("num_heads", message));
        }
        let learned = bounded(vision, "num_position_embeddings", 2304)?;
        let positions = learned.isqrt();
        if positions * positions != learned {
            return Err(vision.error(
                "num_position_embeddings",
                format_args!("is {learned}, which is not a square number"),
            ));
        }
        let depth = bounded(vision, "depth", 27)?;
        let deepstack_visual_indexes = deepstack(family, vision, depth, text.size("num_hidden_layers")?)?;
        let (out_hidden_size, width) = (bounded(vision, "out_hidden_size", 3584)?, text.size("hidden_size")?);
        if out_hidden_size != width {
            let message = format_args!("is {out_hidden_size}; it must be the text's hidden_size, {width}");
            return Err(vision.error("out_hidden_size", message));
        }
        Ok(Self {
            shape: Shape {
                patch_size: bounded(vision, "patch_size", 16)?,
                spatial_merge_size: bounded(vision, "spatial_merge_size", 2)?,
                hidden_size,
                intermediate_size: vision.optional_size("intermediate_size")?.unwrap_or(4304),
                num_heads,
                row_width: out_hidden_size * (1 + deepstack_visual_indexes.len()),
            },
            depth,
            temporal_patch_size: bounded(vision, "temporal_patch_size", 2)?,
            positions,
            hidden_act: if vision.has("hidden_act") {
                activation(vision, "hidden_act")?
            } else {
                Activation::GeluTanh
            },
            out_hidden_size,
            deepstack_visual_indexes,
        })
    }
}

/// Returns the layers with features that are added to the output of the first of `text_layers` layers.
fn deepstack(family: &str, vision: &Fields, depth: usize, text_layers: usize) -> Result<Vec<usize>> {
    let key = "deepstack_visual_indexes";
    let mut layers = vision.numbers(key)?;
    if family.starts_with("qwen3_vl") && !vision.has(key) {
        layers = vec![8.0, 16.0, 24.0];
    }
    let is_layer = |layer: &f64| layer.fract() == 0.0 && (0.0..depth as f64).contains(layer);
    if let Some(layer) = layers.iter().find(|layer| !is_layer(layer)) {
        return Err(vision.error(key, format_args!("has layer {layer}; depth is {depth}")));
    }
    if layers.len() > text_layers {
        let message = format_args!("has {} layers; the text has only {text_layers}", layers.len());
        return Err(vision.error(key, message));
    }
    Ok(layers.into_iter().map(|layer| layer as usize).collect())
}

/// The tower with its weights.
pub(super) struct QwenTower {
    /// The matrix `[3 * patch_size^2, hidden]` and a bias.
    patch_embed: (Array, Array),
    /// `[positions^2, hidden]`
    pos_embed: Embedding,
    positions: usize,
    blocks: Vec<Block>,
    merger: Merger,
    /// The mergers of features of middle layers, by layer.
    deepstack: Vec<(usize, Merger)>,
    head_dim: usize,
}

impl QwenTower {
    /// Loads the tensors under `{name}.`, such as `patch_embed`.
    pub(super) fn load(weights: &mut Weights, name: &str, config: &QwenConfig) -> Result<Self> {
        let hidden = config.shape.hidden_size;
        let block = |weights: &mut Weights, index: usize| {
            Block::load(weights, &format!("{name}.blocks.{index}"), config)
        };
        let deep = config.deepstack_visual_indexes.iter().enumerate();
        Ok(Self {
            patch_embed: (
                patches::frame_kernel(
                    weights,
                    &format!("{name}.patch_embed.proj.weight"),
                    &config.shape,
                    config.temporal_patch_size,
                )?,
                weights.take(&format!("{name}.patch_embed.proj.bias"), &[hidden])?,
            ),
            pos_embed: Embedding::load(
                weights,
                &format!("{name}.pos_embed"),
                config.positions * config.positions,
                hidden,
            )?,
            positions: config.positions,
            blocks: (0..config.depth).map(|index| block(weights, index)).collect::<Result<_>>()?,
            merger: Merger::load(weights, &format!("{name}.merger"), config, false)?,
            deepstack: deep
                .map(|(index, layer)| {
                    let name = format!("{name}.deepstack_merger_list.{index}");
                    Ok((*layer, Merger::load(weights, &name, config, true)?))
                })
                .collect::<Result<_>>()?,
            head_dim: hidden / config.shape.num_heads,
        })
    }

    /// Maps the patches of one picture, `[patches, 3 * patch_size^2]`, in a grid of rows and columns, to `[squares, width]`.
    pub(super) fn forward(&self, patches: &Array, grid: (usize, usize)) -> Result<Array> {
        let (kernel, bias) = &self.patch_embed;
        let dtype = kernel.dtype();
        let rope = AxialRope::new(grid, self.head_dim, THETA, false, dtype)?;
        let mut hidden = add(matmul(patches.as_dtype(dtype)?, kernel)?, bias)?;
        hidden = add(hidden, self.positions(grid)?.as_dtype(dtype)?)?;
        let mut deep = Vec::new();
        for (index, block) in self.blocks.iter().enumerate() {
            hidden = block.forward(&hidden, &rope)?;
            // Evaluating here limits the memory to that of one layer.
            hidden.eval()?;
            for (_, merger) in self.deepstack.iter().filter(|(layer, _)| *layer == index) {
                let features = merger.forward(&hidden, grid)?;
                features.eval()?;
                deep.push(features);
            }
        }
        let first = self.merger.forward(&hidden, grid)?;
        let all: Vec<&Array> = std::iter::once(&first).chain(&deep).collect();
        Ok(if let [only] = all[..] { only.clone() } else { concatenate(&all, 1)? })
    }

    /// Interpolates the learned positions of each patch, `[patches, hidden]`. The corners of the picture have the positions of the square's
    /// corners.
    fn positions(&self, (rows, columns): (usize, usize)) -> Result<Array> {
        let side = self.positions;
        // Returns the two positions next to `place`, and the weight of the second.
        let between = |place: usize, count: usize| {
            let at = if count > 1 { place as f32 * ((side - 1) as f32 / (count - 1) as f32) } else { 0.0 };
            let first = (at.floor() as usize).min(side - 1);
            ([first, (first + 1).min(side - 1)], at - first as f32)
        };
        let (mut indices, mut shares): ([Vec<i32>; 4], [Vec<f32>; 4]) = Default::default();
        for row in 0..rows {
            let (tops, down) = between(row, rows);
            for column in 0..columns {
                let (lefts, across) = between(column, columns);
                for corner in 0..4 {
                    let (below, right) = (corner / 2, corner % 2);
                    indices[corner].push((tops[below] * side + lefts[right]) as i32);
                    let share = |second: usize, share: f32| if second == 1 { share } else { 1.0 - share };
                    shares[corner].push(share(below, down) * share(right, across));
                }
            }
        }
        let count = (rows * columns) as i32;
        let corners = indices.iter().zip(&shares).map(|(indices, shares)| -> Result<Array> {
            let rows = self.pos_embed.rows(&Array::from_slice(indices, &[count]))?;
            Ok(multiply(rows, Array::from_slice(shares, &[count, 1]))?)
        });
        let corners = corners.collect::<Result<Vec<_>>>()?;
        Ok(concatenate(&corners.iter().collect::<Vec<_>>(), 0)?
            .reshape(&[4, count, -1])?
            .sum_axis(0, false)?)
    }
}

struct Block {
    norm1: Norm,
    attention: Attention,
    norm2: Norm,
    linear_fc1: Linear,
    activation: Activated,
    linear_fc2: Linear,
}

impl Block {
    fn load(weights: &mut Weights, name: &str, config: &QwenConfig) -> Result<Self> {
        let (width, inner) = (config.shape.hidden_size, config.shape.intermediate_size);
        let mut linear = |part: &str, outputs: usize, inputs: usize| {
            Linear::load(weights, &[Part { name: &format!("{name}.{part}"), outputs }], inputs, true)
        };
        Ok(Self {
            attention: Attention {
                projection: linear("attn.qkv", 3 * width, width)?,
                output: linear("attn.proj", width, width)?,
                heads: config.shape.num_heads as i32,
                head_dim: (width / config.shape.num_heads) as i32,
            },
            linear_fc1: linear("mlp.linear_fc1", inner, width)?,
            linear_fc2: linear("mlp.linear_fc2", width, inner)?,
            norm1: Norm::load(weights, &format!("{name}.norm1"), width, NORM)?,
            norm2: Norm::load(weights, &format!("{name}.norm2"), width, NORM)?,
            activation: Activated::load(weights, &format!("{name}.mlp"), config.hidden_act)?,
        })
    }

    /// Maps `[patches, hidden]` to the same shape.
    fn forward(&self, input: &Array, rope: &AxialRope) -> Result<Array> {
        let hidden = add(input, self.attention.forward(&self.norm1.forward(input)?, rope)?)?;
        let inner = self.activation.forward(&self.linear_fc1.forward(&self.norm2.forward(&hidden)?)?)?;
        Ok(add(&hidden, self.linear_fc2.forward(&inner)?)?)
    }
}

/// Maps squares of patches to rows of the text's width.
struct Merger {
    norm: Norm,
    /// True if whole squares are normalized instead of each patch.
    norm_squares: bool,
    linear_fc1: Linear,
    activation: Activated,
    linear_fc2: Linear,
    /// The side of a square, in patches.
    side: i32,
}

impl Merger {
    fn load(weights: &mut Weights, name: &str, config: &QwenConfig, norm_squares: bool) -> Result<Self> {
        let side = config.shape.spatial_merge_size;
        let square = config.shape.hidden_size * side * side;
        let mut linear = |part: &str, outputs: usize| {
            Linear::load(weights, &[Part { name: &format!("{name}.{part}"), outputs }], square, true)
        };
        Ok(Self {
            linear_fc1: linear("linear_fc1", square)?,
            linear_fc2: linear("linear_fc2", config.out_hidden_size)?,
            norm: Norm::load(
                weights,
                &format!("{name}.norm"),
                if norm_squares { square } else { config.shape.hidden_size },
                NORM,
            )?,
            norm_squares,
            activation: Activated::load(weights, name, Activation::Gelu)?,
            side: side as i32,
        })
    }

    /// Maps `[patches, hidden]` of a grid of rows and columns to `[squares, text]`.
    fn forward(&self, input: &Array, grid: (usize, usize)) -> Result<Array> {
        let squares = |patches: &Array| patches::squares(patches, grid, self.side);
        let squares = if self.norm_squares {
            self.norm.forward(&squares(input)?)?
        } else {
            squares(&self.norm.forward(input)?)?
        };
        self.linear_fc2.forward(&self.activation.forward(&self.linear_fc1.forward(&squares)?)?)
    }
}
