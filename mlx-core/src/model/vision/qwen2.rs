//! The towers of Qwen 2 VL (Wang et al., 2024, arXiv:2409.12191) and 2.5 VL (Bai et al., 2025, arXiv:2502.13923): rope over rows and columns.
//! Qwen 2.5 VL has gated blocks, and windows in most layers.

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

/// The theta of rope, regardless of config.json.
const THETA: f32 = 10_000.0;

/// The config of the tower.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Qwen2Config {
    /// The sizes. Rows have the width of the text's embeddings.
    pub(super) shape: Shape,
    depth: usize,
    temporal_patch_size: usize,
    hidden_act: Activation,
    norm: NormKind,
    is_gated: bool,
    /// `None` if all patches attend to each other.
    windows: Option<Windows>,
}

/// The windows of attention. In most layers, patches attend only to those of their window.
#[derive(Debug, Clone, PartialEq)]
struct Windows {
    /// The side of a window, in patches.
    side: usize,
    /// The layers without windows.
    whole: Vec<usize>,
}

impl Qwen2Config {
    /// Reads the `vision_config` of Qwen 2 VL. It must fit the text.
    pub(super) fn read_2(vision: &Fields, text: &Fields) -> Result<Self> {
        let width = bounded(vision, "embed_dim", 1280)?;
        let inner = width * bounded(vision, "mlp_ratio", 4)?;
        Ok(Self {
            norm: NormKind::LayerWithBias,
            is_gated: false,
            windows: None,
            ..Self::common(vision, text, (width, inner, "hidden_size"), Activation::QuickGelu)?
        })
    }

    /// Reads the `vision_config` of Qwen 2.5 VL.
    pub(super) fn read_2_5(vision: &Fields, text: &Fields) -> Result<Self> {
        let width = bounded(vision, "hidden_size", 3584)?;
        let inner = vision.optional_size("intermediate_size")?.unwrap_or(3420);
        let widths = (width, inner, "out_hidden_size");
        let mut config = Self::common(vision, text, widths, Activation::Silu)?;
        let Shape { patch_size, spatial_merge_size: merge, .. } = config.shape;
        let window_size = bounded(vision, "window_size", 112)?;
        let side = window_size / merge / patch_size * merge;
        if side == 0 {
            let message = format_args!("is {window_size}, which is less than the side of a merged patch");
            return Err(vision.error("window_size", message));
        }
        config.windows = Some(Windows { side, whole: whole_layers(vision, config.depth)? });
        Ok(config)
    }

    /// Reads what both have in common. The tuple has the widths of patches and of blocks, and the key of the width of rows.
    fn common(
        vision: &Fields,
        text: &Fields,
        (hidden_size, intermediate_size, row_key): (usize, usize, &str),
        usual: Activation,
    ) -> Result<Self> {
        expect_axis_of_each_pair(text)?;
        let num_heads = bounded(vision, "num_heads", 16)?;
        if !hidden_size.is_multiple_of(4 * num_heads) {
            let message = format_args!("must divide {hidden_size} into heads whose width is a multiple of 4");
            return Err(vision.error("num_heads", message));
        }
        let (row_width, width) = (bounded(vision, row_key, 3584)?, text.size("hidden_size")?);
        if row_width != width {
            let message = format_args!("is {row_width}; it must be the text's hidden_size, {width}");
            return Err(vision.error(row_key, message));
        }
        Ok(Self {
            shape: Shape {
                patch_size: bounded(vision, "patch_size", 14)?,
                spatial_merge_size: bounded(vision, "spatial_merge_size", 2)?,
                hidden_size,
                intermediate_size,
                num_heads,
                row_width,
            },
            depth: bounded(vision, "depth", 32)?,
            temporal_patch_size: bounded(vision, "temporal_patch_size", 2)?,
            hidden_act: if vision.has("hidden_act") { activation(vision, "hidden_act")? } else { usual },
            norm: NormKind::Rms,
            is_gated: true,
            windows: None,
        })
    }

    /// Returns the config of all norms of the tower, which does not depend on config.json.
    fn norm(&self) -> NormConfig {
        NormConfig { kind: self.norm, eps: 1e-6 }
    }
}

/// Returns the layers in which all patches attend to each other.
fn whole_layers(vision: &Fields, depth: usize) -> Result<Vec<usize>> {
    let key = "fullatt_block_indexes";
    if !vision.has(key) {
        return Ok(vec![7, 15, 23, 31]);
    }
    let layers = vision.numbers(key)?;
    let is_layer = |layer: &f64| layer.fract() == 0.0 && (0.0..depth as f64).contains(layer);
    match layers.iter().find(|layer| !is_layer(layer)) {
        Some(layer) => Err(vision.error(key, format_args!("has layer {layer}; depth is {depth}"))),
        None => Ok(layers.into_iter().map(|layer| layer as usize).collect()),
    }
}

/// The tower with its weights.
pub(super) struct Qwen2Tower {
    /// `[3 * patch_size^2, hidden]`
    patch_embed: Array,
    blocks: Vec<Block>,
    merger: Merger,
    head_dim: usize,
    windows: Option<Windows>,
}

impl Qwen2Tower {
    /// Loads the tensors under `{name}.`, such as `patch_embed`.
    pub(super) fn load(weights: &mut Weights, name: &str, config: &Qwen2Config) -> Result<Self> {
        let kernel = format!("{name}.patch_embed.proj.weight");
        let block = |weights: &mut Weights, index: usize| {
            Block::load(weights, &format!("{name}.blocks.{index}"), config)
        };
        Ok(Self {
            patch_embed: patches::frame_kernel(weights, &kernel, &config.shape, config.temporal_patch_size)?,
            blocks: (0..config.depth).map(|index| block(weights, index)).collect::<Result<_>>()?,
            merger: Merger::load(weights, &format!("{name}.merger"), config)?,
            head_dim: config.shape.hidden_size / config.shape.num_heads,
            windows: config.windows.clone(),
        })
    }

    /// Maps the patches of one picture, `[patches, 3 * patch_size^2]`, in a grid of rows and columns, to `[squares, width]`.
    pub(super) fn forward(&self, patches: &Array, grid: (usize, usize)) -> Result<Array> {
        let dtype = self.patch_embed.dtype();
        let rope = AxialRope::new(grid, self.head_dim, THETA, false, dtype)?;
        let hidden = matmul(patches.as_dtype(dtype)?, &self.patch_embed)?;
        let Some(Windows { side, whole }) = &self.windows else {
            return self.merger.forward(&self.blocks(&hidden, &rope, |_| None)?, grid);
        };
        let (order, back, ends) = windows(grid, *side);
        let (hidden, rope) = (hidden.take_axis(&order, 0)?, rope.in_order(&order)?);
        let hidden = self.blocks(&hidden, &rope, |layer| (!whole.contains(&layer)).then_some(&ends[..]))?;
        self.merger.forward(&hidden.take_axis(&back, 0)?, grid)
    }

    /// Runs all blocks on `[patches, hidden]`. `ends` returns the ends of a layer's windows, if it has windows.
    fn blocks<'a>(
        &self,
        patches: &Array,
        rope: &AxialRope,
        ends: impl Fn(usize) -> Option<&'a [i32]>,
    ) -> Result<Array> {
        let (mut hidden, all) = (patches.clone(), [patches.dim(0)]);
        for (layer, block) in self.blocks.iter().enumerate() {
            hidden = block.forward(ends(layer).unwrap_or(&all), &hidden, rope)?;
            // Evaluating here limits the memory to that of one layer.
            hidden.eval()?;
        }
        Ok(hidden)
    }
}

/// Returns the patches of a grid in the order of windows, the inverse of this order, and the ends of the windows. Patches of a window are in
/// reading order. Windows at the right and the bottom edge are smaller if the sides of the grid are not multiples of `side`.
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
    mlp: Mlp,
}

impl Block {
    fn load(weights: &mut Weights, name: &str, config: &Qwen2Config) -> Result<Self> {
        let Shape { hidden_size: width, num_heads: heads, .. } = config.shape;
        let mut linear = |part: &str, outputs: usize| {
            Linear::load(weights, &[Part { name: &format!("{name}.{part}"), outputs }], width, true)
        };
        Ok(Self {
            attention: Attention {
                projection: linear("attn.qkv", 3 * width)?,
                output: linear("attn.proj", width)?,
                heads: heads as i32,
                head_dim: (width / heads) as i32,
            },
            mlp: Mlp::load(weights, &format!("{name}.mlp"), config)?,
            norm1: Norm::load(weights, &format!("{name}.norm1"), width, config.norm())?,
            norm2: Norm::load(weights, &format!("{name}.norm2"), width, config.norm())?,
        })
    }

    /// Maps `[patches, hidden]` to the same shape. `ends` has the ends of the windows.
    fn forward(&self, ends: &[i32], input: &Array, rope: &AxialRope) -> Result<Array> {
        let hidden = add(input, self.attention.within(ends, &self.norm1.forward(input)?, rope)?)?;
        Ok(add(&hidden, self.mlp.forward(&self.norm2.forward(&hidden)?)?)?)
    }
}

enum Mlp {
    Gated(FeedForward),
    Plain { fc1: Linear, activation: Activated, fc2: Linear },
}

impl Mlp {
    fn load(weights: &mut Weights, name: &str, config: &Qwen2Config) -> Result<Self> {
        let Shape { hidden_size: width, intermediate_size, .. } = config.shape;
        if config.is_gated {
            let gated = FeedForwardConfig {
                intermediate_size,
                bias: true,
                input: FeedForwardInput::Gated,
                activation: config.hidden_act,
                multipliers: None,
                activation_sparsity: None,
            };
            return FeedForward::load(weights, name, width, &gated).map(Self::Gated);
        }
        let mut linear = |part: &str, outputs: usize, inputs: usize| {
            Linear::load(weights, &[Part { name: &format!("{name}.{part}"), outputs }], inputs, true)
        };
        Ok(Self::Plain {
            fc1: linear("fc1", intermediate_size, width)?,
            fc2: linear("fc2", width, intermediate_size)?,
            activation: Activated::load(weights, name, config.hidden_act)?,
        })
    }

    fn forward(&self, input: &Array) -> Result<Array> {
        match self {
            Self::Gated(gated) => gated.forward(input),
            Self::Plain { fc1, activation, fc2 } => fc2.forward(&activation.forward(&fc1.forward(input)?)?),
        }
    }
}

/// Rejects counts that do not give every pair of the text's heads an axis. Only rows of pictures use them.
fn expect_axis_of_each_pair(text: &Fields) -> Result<()> {
    let parameters = text.section("rope_parameters")?;
    let Some(rope) = parameters.or(text.section("rope_scaling")?).filter(|it| it.has("mrope_section")) else {
        return Ok(());
    };
    let width = match text.optional_size("head_dim")? {
        Some(width) => width,
        None => text.size("hidden_size")? / text.size("num_attention_heads")?,
    };
    let pairs = width / 2;
    // Each count is a whole number, or the text would not load.
    let sum = rope.numbers("mrope_section")?.iter().sum::<f64>() as usize;
    if sum != pairs {
        return Err(
            rope.error("mrope_section", format_args!("must be three counts that sum to {pairs} pairs"))
        );
    }
    Ok(())
}

/// Maps squares of patches to rows of the text's width.
struct Merger {
    ln_q: Norm,
    first: Linear,
    activation: Activated,
    second: Linear,
    /// The side of a square, in patches.
    side: i32,
}

impl Merger {
    fn load(weights: &mut Weights, name: &str, config: &Qwen2Config) -> Result<Self> {
        let Shape { hidden_size, spatial_merge_size: side, row_width, .. } = config.shape;
        let square = hidden_size * side * side;
        let mut linear = |part: &str, outputs: usize| {
            Linear::load(weights, &[Part { name: &format!("{name}.{part}"), outputs }], square, true)
        };
        Ok(Self {
            first: linear("mlp.0", square)?,
            second: linear("mlp.2", row_width)?,
            ln_q: Norm::load(weights, &format!("{name}.ln_q"), hidden_size, config.norm())?,
            activation: Activated::load(weights, name, Activation::Gelu)?,
            side: side as i32,
        })
    }

    /// Maps `[patches, hidden]` of a grid of rows and columns to `[squares, text]`.
    fn forward(&self, input: &Array, grid: (usize, usize)) -> Result<Array> {
        let squares = patches::squares(&self.ln_q.forward(input)?, grid, self.side)?;
        self.second.forward(&self.activation.forward(&self.first.forward(&squares)?)?)
    }
}
