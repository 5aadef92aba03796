//! The tower of Qwen 2.5 VL (Bai et al., 2025, arXiv:2502.13923): rope over rows and columns, gated blocks, and windows in all layers but a
//! few.

use mlx_rs::Array;
use mlx_rs::ops::{add, matmul};

use super::attention::Attention;
use super::axial_rope::AxialRope;
use super::config::{activation, bounded};
use super::footprint::Shape;
use super::patches;
use crate::config::Fields;
use crate::error::Result;
use crate::model::activation::{Activated, Activation};
use crate::model::feed_forward::{FeedForward, FeedForwardConfig, FeedForwardInput};
use crate::model::linear::{Linear, Part};
use crate::model::norm::{Norm, NormConfig, NormKind};
use crate::weights::Weights;

/// Of all norms of the tower, whatever config.json says.
const NORM: NormConfig = NormConfig { kind: NormKind::Rms, eps: 1e-6 };

/// Of the rope, whatever config.json says.
const THETA: f32 = 10_000.0;

/// What config.json says about the tower.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Qwen25Config {
    /// Its rows are as wide as the text's embeddings.
    pub(super) shape: Shape,
    depth: usize,
    temporal_patch_size: usize,
    hidden_act: Activation,
    /// Patches of a side of a window.
    window: usize,
    /// The layers without windows.
    fullatt_block_indexes: Vec<usize>,
}

impl Qwen25Config {
    /// Reads `vision_config`, which must fit the text.
    pub(super) fn read(vision: &Fields, text: &Fields) -> Result<Self> {
        let (hidden_size, num_heads) =
            (bounded(vision, "hidden_size", 3584)?, bounded(vision, "num_heads", 16)?);
        if !hidden_size.is_multiple_of(4 * num_heads) {
            let message = "must divide hidden_size into heads whose width is a multiple of 4";
            return Err(vision.error("num_heads", message));
        }
        let (row_width, width) = (bounded(vision, "out_hidden_size", 3584)?, text.size("hidden_size")?);
        if row_width != width {
            let message = format_args!("is {row_width}; it must be the text's hidden_size, {width}");
            return Err(vision.error("out_hidden_size", message));
        }
        let depth = bounded(vision, "depth", 32)?;
        let patch_size = bounded(vision, "patch_size", 14)?;
        let spatial_merge_size = bounded(vision, "spatial_merge_size", 2)?;
        let window_size = bounded(vision, "window_size", 112)?;
        let window = window_size / spatial_merge_size / patch_size * spatial_merge_size;
        if window == 0 {
            let message = format_args!("is {window_size}, which is less than what becomes one row");
            return Err(vision.error("window_size", message));
        }
        Ok(Self {
            shape: Shape {
                patch_size,
                spatial_merge_size,
                hidden_size,
                intermediate_size: vision.optional_size("intermediate_size")?.unwrap_or(3420),
                num_heads,
                row_width,
            },
            depth,
            temporal_patch_size: bounded(vision, "temporal_patch_size", 2)?,
            hidden_act: if vision.has("hidden_act") {
                activation(vision, "hidden_act")?
            } else {
                Activation::Silu
            },
            window,
            fullatt_block_indexes: whole_layers(vision, depth)?,
        })
    }
}

/// The layers in which all patches attend to each other.
fn whole_layers(vision: &Fields, depth: usize) -> Result<Vec<usize>> {
    let key = "fullatt_block_indexes";
    if !vision.has(key) {
        return Ok(vec![7, 15, 23, 31]);
    }
    let layers = vision.numbers(key)?;
    let is_layer = |layer: &f64| layer.fract() == 0.0 && (0.0..depth as f64).contains(layer);
    match layers.iter().find(|layer| !is_layer(layer)) {
        Some(layer) => Err(vision.error(key, format_args!("names layer {layer}; there are {depth}"))),
        None => Ok(layers.into_iter().map(|layer| layer as usize).collect()),
    }
}

/// The tower.
pub(super) struct Qwen25Tower {
    /// `[3 * patch_size^2, hidden]`
    patch_embed: Array,
    blocks: Vec<Block>,
    merger: Merger,
    head_dim: usize,
    window: usize,
    fullatt_block_indexes: Vec<usize>,
}

impl Qwen25Tower {
    /// Takes `{name}.patch_embed` and its like.
    pub(super) fn load(weights: &mut Weights, name: &str, config: &Qwen25Config) -> Result<Self> {
        let kernel = format!("{name}.patch_embed.proj.weight");
        let block = |weights: &mut Weights, index: usize| {
            Block::load(weights, &format!("{name}.blocks.{index}"), config)
        };
        Ok(Self {
            patch_embed: patches::frame_kernel(weights, &kernel, &config.shape, config.temporal_patch_size)?,
            blocks: (0..config.depth).map(|index| block(weights, index)).collect::<Result<_>>()?,
            merger: Merger::load(weights, &format!("{name}.merger"), &config.shape)?,
            head_dim: config.shape.hidden_size / config.shape.num_heads,
            window: config.window,
            fullatt_block_indexes: config.fullatt_block_indexes.clone(),
        })
    }

    /// The patches of one picture, `[patches, 3 * patch_size^2]`, in a grid of rows and columns, to `[squares, width]`.
    pub(super) fn forward(&self, patches: &Array, grid: (usize, usize)) -> Result<Array> {
        let dtype = self.patch_embed.dtype();
        let (order, back, ends) = windows(grid, self.window);
        let rope = AxialRope::new(grid, self.head_dim, THETA, false, dtype)?.in_order(&order)?;
        let patches = patches.as_dtype(dtype)?.take_axis(&order, 0)?;
        let mut hidden = matmul(&patches, &self.patch_embed)?;
        for (index, block) in self.blocks.iter().enumerate() {
            let all = [hidden.dim(0)];
            let ends = if self.fullatt_block_indexes.contains(&index) { &all[..] } else { &ends };
            hidden = block.forward(ends, &hidden, &rope)?;
            // What is in flight is one layer, whose memory is known.
            hidden.eval()?;
        }
        self.merger.forward(&hidden.take_axis(&back, 0)?, grid)
    }
}

/// The patches of a grid window by window, each in reading order; where each of them is then; and where the windows end. Those at the right
/// and at the bottom are smaller where the grid is no multiple of them.
fn windows((rows, columns): (usize, usize), side: usize) -> (Array, Array, Vec<i32>) {
    let (mut order, mut back, mut ends) = (Vec::new(), vec![0; rows * columns], Vec::new());
    for top in (0..rows).step_by(side) {
        for left in (0..columns).step_by(side) {
            for row in top..rows.min(top + side) {
                for column in left..columns.min(left + side) {
                    back[row * columns + column] = order.len() as i32;
                    order.push((row * columns + column) as i32);
                }
            }
            ends.push(order.len() as i32);
        }
    }
    let array = |places: &[i32]| Array::from_slice(places, &[places.len() as i32]);
    (array(&order), array(&back), ends)
}

struct Block {
    norm1: Norm,
    attention: Attention,
    norm2: Norm,
    mlp: FeedForward,
}

impl Block {
    fn load(weights: &mut Weights, name: &str, config: &Qwen25Config) -> Result<Self> {
        let Shape { hidden_size: width, intermediate_size, num_heads: heads, .. } = config.shape;
        let mut linear = |part: &str, outputs: usize| {
            Linear::load(weights, &[Part { name: &format!("{name}.{part}"), outputs }], width, true)
        };
        let mlp = FeedForwardConfig {
            intermediate_size,
            bias: true,
            input: FeedForwardInput::Gated,
            activation: config.hidden_act,
            multipliers: None,
        };
        Ok(Self {
            attention: Attention {
                projection: linear("attn.qkv", 3 * width)?,
                output: linear("attn.proj", width)?,
                heads: heads as i32,
                head_dim: (width / heads) as i32,
            },
            mlp: FeedForward::load(weights, &format!("{name}.mlp"), width, &mlp)?,
            norm1: Norm::load(weights, &format!("{name}.norm1"), width, NORM)?,
            norm2: Norm::load(weights, &format!("{name}.norm2"), width, NORM)?,
        })
    }

    /// `[patches, hidden]` to the same shape, in windows that end here.
    fn forward(&self, ends: &[i32], input: &Array, rope: &AxialRope) -> Result<Array> {
        let hidden = add(input, self.attention.within(ends, &self.norm1.forward(input)?, rope)?)?;
        Ok(add(&hidden, self.mlp.forward(&self.norm2.forward(&hidden)?)?)?)
    }
}

/// Squares of patches to rows of the text's width.
struct Merger {
    ln_q: Norm,
    first: Linear,
    activation: Activated,
    second: Linear,
    /// Patches of a side of a square.
    side: i32,
}

impl Merger {
    fn load(weights: &mut Weights, name: &str, shape: &Shape) -> Result<Self> {
        let side = shape.spatial_merge_size;
        let square = shape.hidden_size * side * side;
        let mut linear = |part: &str, outputs: usize| {
            Linear::load(weights, &[Part { name: &format!("{name}.{part}"), outputs }], square, true)
        };
        Ok(Self {
            first: linear("mlp.0", square)?,
            second: linear("mlp.2", shape.row_width)?,
            ln_q: Norm::load(weights, &format!("{name}.ln_q"), shape.hidden_size, NORM)?,
            activation: Activated::load(weights, name, Activation::Gelu)?,
            side: side as i32,
        })
    }

    /// `[patches, hidden]` of a grid of rows and columns to `[squares, text]`.
    fn forward(&self, input: &Array, grid: (usize, usize)) -> Result<Array> {
        let squares = patches::squares(&self.ln_q.forward(input)?, grid, self.side)?;
        self.second.forward(&self.activation.forward(&self.first.forward(&squares)?)?)
    }
}
