//! Heads that predict the token after the next one from the last hidden states and the tokens behind them (DeepSeek-V3,
//! arXiv:2412.19437, section 2.2): a layer of their own between the model's embedding and its head.

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::config::{DecoderConfig, LayerConfig};
use super::linear::{Linear, Part};
use super::mixer::MixerKind;
use super::norm::Norm;
use crate::error::Result;
use crate::weights::Weights;

/// The most positions before a draft that a head reads.
pub(crate) const MTP_HISTORY: usize = 128;

/// The names in the files under which Qwen's checkpoints keep the head, the longest first, and what the decoder calls it.
const PLACES: [(&str, &str); 4] = [
    ("mtp.", "model.language_model.mtp."),
    ("mtp.", "language_model.mtp."),
    ("mtp.", "model.mtp."),
    ("mtp.", "mtp."),
];

/// Where a head's tensors are.
pub(super) struct MtpNames {
    /// Its layer.
    pub(super) block: String,
    /// The norm behind it.
    pub(super) norm: String,
    embedding_norm: String,
    hidden_norm: String,
    projection: String,
}

impl MtpNames {
    /// The head of these weights, if they have one of a known form.
    pub(super) fn find(weights: &mut Weights, config: &DecoderConfig) -> Option<Self> {
        // As DeepSeek writes it: the layer behind the last one.
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
        let place = PLACES.into_iter().find(|(_, place)| weights.has_under(&format!("{place}fc.weight")))?;
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

    /// Whether the head needs a tensor of this name.
    pub(super) fn owns(&self, weights: &Weights, name: &str) -> bool {
        let parts = [&self.norm, &self.embedding_norm, &self.hidden_norm, &self.projection];
        let is_of = |part: &str| name.starts_with(&weights.in_files(&format!("{part}.")));
        // Copies of the model's own.
        let others = ["embed_tokens", "shared_head.head"].map(|part| format!("{}.{part}", self.block));
        parts.into_iter().any(|part| is_of(part))
            || is_of(&self.block) && !others.iter().any(|other| is_of(other))
    }
}

/// The config of the head as a decoder of one layer, shaped as the last one that attends to all positions; `None` if there is none.
pub(super) fn config_of_head(config: &DecoderConfig) -> Option<DecoderConfig> {
    let attends = |layer: &&LayerConfig| {
        matches!(layer.mixer, MixerKind::Attention | MixerKind::Latent(_)) && layer.sliding_window.is_none()
    };
    let layer = config.layers.iter().rev().find(attends)?;
    let layer = LayerConfig { kv_source: None, ..layer.clone() };
    Some(DecoderConfig { layers: vec![layer], per_layer_input: None, ..config.clone() })
}

/// What makes the input of the layer from a token and the hidden state before it.
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

    /// `[T, hidden]` of both to the same shape.
    pub(super) fn forward(&self, embedded: &Array, hidden: &Array) -> Result<Array> {
        let parts = [self.embedding_norm.forward(embedded)?, self.hidden_norm.forward(hidden)?];
        self.projection.forward(&concatenate(&[&parts[0], &parts[1]], -1)?)
    }
}
