//! Pixtral's tower (Agrawal et al., 2024, arXiv:2410.07073): blocks like those of llama over the patches of a picture of any shape.

use mlx_rs::Array;
use mlx_rs::ops::{add, matmul, multiply};

use super::attention::Attention;
use super::axial_rope::AxialRope;
use super::config::PixtralConfig;
use crate::error::Result;
use crate::model::activation::Activated;
use crate::model::linear::{Linear, Part};
use crate::model::norm::{Norm, NormConfig, NormKind};
use crate::weights::Weights;

/// The config of all norms of the tower, regardless of config.json.
const NORM: NormConfig = NormConfig { kind: NormKind::Rms, eps: 1e-5 };

/// The tower with its weights.
pub(super) struct PixtralTower {
    /// `[3 * patch_size^2, hidden]`
    patch_conv: Array,
    ln_pre: Norm,
    layers: Vec<Layer>,
    head_dim: usize,
    rope_theta: f32,
}

struct Layer {
    attention_norm: Norm,
    attention: Attention,
    ffn_norm: Norm,
    /// Gate and up, stacked.
    gate_up: Linear,
    activation: Activated,
    down: Linear,
}

impl PixtralTower {
    /// Loads the tensors under `{name}.`, such as `patch_conv`.
    pub(super) fn load(weights: &mut Weights, name: &str, config: &PixtralConfig) -> Result<Self> {
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for index in 0..config.num_hidden_layers {
            layers.push(Layer::load(weights, &format!("{name}.transformer.layers.{index}"), config)?);
        }
        layers.truncate(config.layers);
        Ok(Self {
            patch_conv: patch_conv(weights, &format!("{name}.patch_conv.weight"), config)?,
            ln_pre: Norm::load(weights, &format!("{name}.ln_pre"), config.shape.hidden_size, NORM)?,
            layers,
            head_dim: config.head_dim,
            rope_theta: config.rope_theta,
        })
    }

    /// Maps the patches of one picture, `[patches, 3 * patch_size^2]`, in a grid of rows and columns, to `[patches, hidden]`.
    pub(super) fn forward(&self, patches: &Array, grid: (usize, usize)) -> Result<Array> {
        let dtype = self.patch_conv.dtype();
        let rope = AxialRope::new(grid, self.head_dim, self.rope_theta, true, dtype)?;
        let mut hidden = self.ln_pre.forward(&matmul(patches.as_dtype(dtype)?, &self.patch_conv)?)?;
        for layer in &self.layers {
            hidden = layer.forward(&hidden, &rope)?;
            // Evaluating here limits the memory to that of one layer.
            hidden.eval()?;
        }
        Ok(hidden)
    }
}

/// Loads attention, which has no biases.
fn attention(weights: &mut Weights, name: &str, config: &PixtralConfig) -> Result<Attention> {
    let width = config.shape.hidden_size;
    let names = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{name}.{part}"));
    let parts = names.each_ref().map(|name| Part { name, outputs: width });
    let output = Part { name: &format!("{name}.o_proj"), outputs: width };
    Ok(Attention {
        projection: Linear::load(weights, &parts, width, false)?,
        output: Linear::load(weights, &[output], width, false)?,
        heads: config.shape.num_heads as i32,
        head_dim: config.head_dim as i32,
    })
}

/// Loads the kernel of patches. PyTorch puts colors before rows and columns; MLX puts them last.
fn patch_conv(weights: &mut Weights, name: &str, config: &PixtralConfig) -> Result<Array> {
    let (hidden, size) = (config.shape.hidden_size, config.shape.patch_size);
    let first = [hidden, 3, size, size];
    let kernel = if weights.shape(name) == Some(&first[..]) {
        weights.take(name, &first)?
    } else {
        weights.take(name, &[hidden, size, size, 3])?.transpose_axes(&[0, 3, 1, 2])?
    };
    Ok(kernel.reshape(&[hidden as i32, -1])?.swap_axes(0, 1)?)
}

impl Layer {
    fn load(weights: &mut Weights, name: &str, config: &PixtralConfig) -> Result<Self> {
        let (width, inner) = (config.shape.hidden_size, config.shape.intermediate_size);
        let feed = format!("{name}.feed_forward");
        let names = [format!("{feed}.gate_proj"), format!("{feed}.up_proj")];
        let parts = names.each_ref().map(|name| Part { name, outputs: inner });
        let down = Part { name: &format!("{feed}.down_proj"), outputs: width };
        Ok(Self {
            attention_norm: Norm::load(weights, &format!("{name}.attention_norm"), width, NORM)?,
            attention: attention(weights, &format!("{name}.attention"), config)?,
            ffn_norm: Norm::load(weights, &format!("{name}.ffn_norm"), width, NORM)?,
            gate_up: Linear::load(weights, &parts, width, false)?,
            activation: Activated::load(weights, &feed, config.hidden_act)?,
            down: Linear::load(weights, &[down], inner, false)?,
        })
    }

    /// Maps `[patches, hidden]` to the same shape.
    fn forward(&self, input: &Array, rope: &AxialRope) -> Result<Array> {
        let hidden = add(input, self.attention.forward(&self.attention_norm.forward(input)?, rope)?)?;
        let both = self.gate_up.forward(&self.ffn_norm.forward(&hidden)?)?;
        let halves = both.split_equal(2, -1)?;
        let inner = multiply(self.activation.forward(&halves[0])?, &halves[1])?;
        Ok(add(&hidden, self.down.forward(&inner)?)?)
    }
}
