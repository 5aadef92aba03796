//! MTP heads, which predict the token after the next one from the last hidden states and the tokens that follow them (DeepSeek-V3,
//! arXiv:2412.19437, section 2.2). It is one layer between the model's embedding and its output head.

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::config::{DecoderConfig, LayerConfig};
use super::linear::{Linear, Part};
use super::mixer::MixerKind;
use super::norm::Norm;
use crate::error::Result;
use crate::weights::Weights;

/// The maximum number of positions before a draft that a head reads.
pub(crate) const MTP_HISTORY: usize = 128;

/// Pairs of the decoder's prefix of the head and its prefix in the files of Qwen's checkpoints, the longest first.
const LAYOUTS: [(&str, &str); 4] = [
    ("mtp.", "model.language_model.mtp."),
    ("mtp.", "language_model.mtp."),
    ("mtp.", "model.mtp."),
    ("mtp.", "mtp."),
];

/// The tensor names of an MTP head.
pub(super) struct MtpNames {
    /// The layer.
    pub(super) block: String,
    /// The norm after the layer.
    pub(super) norm: String,
    embedding_norm: String,
    hidden_norm: String,
    projection: String,
}

impl MtpNames {
    /// Finds the head of these weights, if they have one in a known layout.
    pub(super) fn find(weights: &mut Weights, config: &DecoderConfig) -> Option<Self> {
        // DeepSeek stores it as the layer after the last one.
        let block = format!("model.layers.{}", config.layers.len());
        if config.draft_layers > 0 && weights.has(&format!("{block}.eh_proj.weight")) {
            return Some(Self {
                norm: format!("{block}.shared_head.norm"),
                embedding_norm: format!("{block}.enorm"),
                hidden_norm: format!("{block}.hnorm"),
                projection: format!("{block}.eh_proj"),
                block,
            });
        }
        let place = LAYOUTS.into_iter().find(|(_, place)| weights.has_under(&format!("{place}fc.weight")))?;
        weights.rename(&[place]);
        let name = |part: &str| format!("mtp.{part}");
        Some(Self {
            block: name("layers.0"),
            norm: name("norm"),
            embedding_norm: name("pre_fc_norm_embedding"),
            hidden_norm: name("pre_fc_norm_hidden"),
            projection: name("fc"),
        })
    }

    /// Returns true if the head needs a tensor of this name.
    pub(super) fn owns(&self, weights: &Weights, name: &str) -> bool {
        let parts = [&self.norm, &self.embedding_norm, &self.hidden_norm, &self.projection];
        let is_of = |part: &str| name.starts_with(&weights.file_name_of(&format!("{part}.")));
        // Copies of the model's own embedding and head.
        let others = ["embed_tokens", "shared_head.head"].map(|part| format!("{}.{part}", self.block));
        parts.into_iter().any(|part| is_of(part))
            || is_of(&self.block) && !others.iter().any(|other| is_of(other))
    }
}

/// Returns the config of the head as a decoder of one layer, with the shape of the last layer that attends to all positions. `None` if
/// there is no such layer.
pub(super) fn config_of_head(config: &DecoderConfig) -> Option<DecoderConfig> {
    let attends = |layer: &&LayerConfig| {
        matches!(layer.mixer, MixerKind::Attention | MixerKind::Latent(_)) && layer.sliding_window.is_none()
    };
    let layer = config.layers.iter().rev().find(attends)?;
    let layer = LayerConfig { kv_source: None, ..layer.clone() };
    Some(DecoderConfig { layers: vec![layer], per_layer_input: None, ..config.clone() })
}

/// The projection that combines a token with the hidden state before it into the input of the layer.
pub(super) struct Fusion {
    embedding_norm: Norm,
    hidden_norm: Norm,
    projection: Linear,
}

impl Fusion {
    pub(super) fn load(weights: &mut Weights, names: &MtpNames, config: &DecoderConfig) -> Result<Self> {
        let width = config.hidden_size;
        Ok(Self {
            embedding_norm: Norm::load(weights, &names.embedding_norm, width, config.norm)?,
            hidden_norm: Norm::load(weights, &names.hidden_norm, width, config.norm)?,
            projection: Linear::load(
                weights,
                &[Part { name: &names.projection, outputs: width }],
                2 * width,
                false,
            )?,
        })
    }

    /// Maps `[T, hidden]` of both to the same shape.
    pub(super) fn forward(&self, embedded: &Array, hidden: &Array) -> Result<Array> {
        let parts = [self.embedding_norm.forward(embedded)?, self.hidden_norm.forward(hidden)?];
        self.projection.forward(&concatenate(&[&parts[0], &parts[1]], -1)?)
    }
}
