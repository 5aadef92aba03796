//! Cohere's Command: attention and feed-forward read the same norm and run in parallel; rope is interleaved.

use super::base::{self, Defaults, LLAMA, flag, nullable};
use super::layers;
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::QkNormScope;
use crate::model::config::BlockConfig;
use crate::model::config::DecoderConfig;
use crate::model::head::LogitScale;
use crate::model::norm::NormKind;

const COHERE: Defaults = Defaults {
    max_position_embeddings: 8192,
    eps: ("layer_norm_eps", 1e-5),
    norm: NormKind::Layer,
    rope_theta: 500_000.0,
    interleaved: true,
    ..LLAMA
};

fn read(fields: &Fields, defaults: &Defaults) -> Result<DecoderConfig> {
    let biased = flag(fields, "layer_norm_bias", false)?;
    let norm = if biased { NormKind::LayerWithBias } else { defaults.norm };
    let mut config = base::with_biases(fields, &Defaults { norm, ..*defaults })?;
    config.feed_forward.bias = false;
    config.block = BlockConfig { pre_feedforward_norm: None, parallel_residual: true, ..BlockConfig::LLAMA };
    config.head.scale = nullable(fields, "logit_scale", Some(0.0625))?.map(LogitScale::Times);
    config.head.tie_word_embeddings = true;
    Ok(config)
}

/// Command R and R+.
pub(super) fn cohere(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = read(fields, &COHERE)?;
    if flag(fields, "use_qk_norm", false)? {
        base::normalize_heads(&mut config, QkNormScope::HeadOwnWeights);
    }
    Ok(config)
}

/// Command R7B and A: three of four layers have a window. The fourth attends to everything and has no rope.
pub(super) fn cohere2(fields: &Fields) -> Result<DecoderConfig> {
    // `head_dim` is always the width divided by the number of heads.
    let mut config = read(&fields.without("head_dim"), &Defaults { rope_theta: 10_000.0, ..COHERE })?;
    let pattern = fields.optional_size("sliding_window_pattern")?.unwrap_or(4);
    let sliding = layers::kinds(fields, config.layers.len(), |layer| !(layer + 1).is_multiple_of(pattern))?;
    layers::set_window(fields, &mut config, &sliding, layers::window(fields, Some(4096))?)?;
    for layer in &mut config.layers {
        layer.rope = layer.rope.take().filter(|_| layer.sliding_window.is_some());
    }
    Ok(config)
}
