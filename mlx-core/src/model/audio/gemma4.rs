//! Gemma 4's audio tower (Zhang et al., 2023, arXiv:2303.01037): two convolutions reduce the frames to a quarter, conformer layers
//! (Gulati et al., 2020, arXiv:2005.08100) with local attention follow.

mod attention;
mod config;
mod layer;
mod subsampling;

use mlx_rs::Array;

use self::attention::Blocks;
pub(super) use self::config::AudioConfig;
use self::layer::ConformerLayer;
use self::subsampling::Subsampling;
use crate::error::Result;
use crate::model::linear::{Linear, Part};
use crate::weights::Weights;

/// The tower without its projector.
pub(super) struct Gemma4AudioTower {
    subsampling: Subsampling,
    layers: Vec<ConformerLayer>,
    output_proj: Linear,
    /// The rows per block of the attention.
    block: i32,
}

impl Gemma4AudioTower {
    /// Loads the tower's tensors under `{name}.`, such as `output_proj`.
    pub(super) fn load(weights: &mut Weights, name: &str, config: &AudioConfig) -> Result<Self> {
        let subsampling = Subsampling::load(weights, &format!("{name}.subsample_conv_projection"), config)?;
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for index in 0..config.num_hidden_layers {
            layers.push(ConformerLayer::load(weights, &format!("{name}.layers.{index}"), config)?);
        }
        let output = Part { name: &format!("{name}.output_proj"), outputs: config.output_proj_dims };
        Ok(Self {
            subsampling,
            layers,
            output_proj: Linear::load(weights, &[output], config.hidden_size, true)?,
            block: config.attention_chunk_size as i32,
        })
    }

    /// Maps the frames of one clip, `[frames, bins]`, to `[rows, output]`.
    pub(super) fn forward(&self, frames: &Array) -> Result<Array> {
        let mut hidden = self.subsampling.forward(frames)?;
        let blocks = Blocks::new(hidden.dim(0), self.block);
        for layer in &self.layers {
            hidden = layer.forward(&hidden, &blocks)?;
            // Evaluating here limits the memory to that of one layer.
            hidden.eval()?;
        }
        self.output_proj.forward(&hidden)
    }
}
