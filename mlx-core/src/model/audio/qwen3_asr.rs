//! Qwen3-ASR's audio tower (Shi et al., 2026, arXiv:2601.21337): convolutions reduce chunks of a second to rows, layers with attention within
//! windows follow, and two projections to the width of the text.

mod chunks;
mod config;
mod layer;

use mlx_rs::Array;

use self::chunks::Chunks;
pub(super) use self::config::TowerConfig;
use self::layer::Layer;
use crate::error::Result;
use crate::model::activation::Activated;
use crate::model::linear::{Linear, Part};
use crate::model::norm::Norm;
use crate::model::whisper::NORM;
use crate::weights::Weights;

/// The tower with its projector.
pub(super) struct Qwen3AsrTower {
    chunks: Chunks,
    layers: Vec<Layer>,
    norm: Norm,
    /// The projections, with the activation function between them.
    projections: [Linear; 2],
    activated: Activated,
}

impl Qwen3AsrTower {
    /// Loads the tower. Its output has the width of the text, `text_width`.
    pub(super) fn load(weights: &mut Weights, config: &TowerConfig, text_width: usize) -> Result<Self> {
        let (tower, projector) = ("model.audio_tower", "model.multi_modal_projector");
        let hidden = config.hidden_size;
        let chunks = Chunks::load(weights, tower, config)?;
        let layers = (0..config.layers)
            .map(|index| Layer::load(weights, &format!("{tower}.layers.{index}"), config))
            .collect::<Result<_>>()?;
        let norm = Norm::load(weights, &format!("{tower}.ln_post"), hidden, NORM)?;
        let mut linear = |name: &str, outputs: usize| {
            let name = format!("{projector}.{name}");
            Linear::load(weights, &[Part { name: &name, outputs }], hidden, true)
        };
        let projections = [linear("linear_1", hidden)?, linear("linear_2", text_width)?];
        let activated = Activated::load(weights, projector, config.activation)?;
        Ok(Self { chunks, layers, norm, projections, activated })
    }

    /// Maps the frames of one clip, `[frames, bins]`, to `[rows, text width]`.
    pub(super) fn forward(&self, frames: &Array) -> Result<Array> {
        let mut hidden = self.chunks.forward(frames)?;
        for layer in &self.layers {
            hidden = layer.forward(&hidden)?;
            // Evaluating here limits the memory to that of one layer.
            hidden.eval()?;
        }
        let [first, second] = &self.projections;
        let wide = first.forward(&self.norm.forward(&hidden)?)?;
        second.forward(&self.activated.forward(&wide)?)
    }
}
