//! Gemma 1, 2 and 3: norms multiply by `1 + weight`, and embeddings are scaled by the root of their width.

use super::base::{self, Defaults, LLAMA, nullable, positive, refuse};
use super::layers::{self, FULL, SLIDING};
use crate::config::Fields;
use crate::error::Result;
use crate::model::activation::Activation;
use crate::model::attention::QkNormScope;
use crate::model::config::BlockConfig;
use crate::model::config::DecoderConfig;
use crate::model::norm::NormKind;
use crate::model::rope::{RopeConfig, RopeDefaults};

const GEMMA: Defaults = Defaults {
    num_kv_heads: Some(16),
    head_dim: Some(256),
    max_position_embeddings: 8192,
    norm: NormKind::RmsPlusOne,
    activation: ("hidden_act", "gelu_pytorch_tanh"),
    ..LLAMA
};

/// The block of newer Gemmas, with four norms per layer.
pub(super) const BLOCK: BlockConfig = BlockConfig {
    post_attention_norm: Some("post_attention_layernorm"),
    pre_feedforward_norm: Some("pre_feedforward_layernorm"),
    post_feedforward_norm: Some("post_feedforward_layernorm"),
    ..BlockConfig::LLAMA
};

fn read(fields: &Fields, defaults: &Defaults) -> Result<DecoderConfig> {
    refuse(fields, "use_bidirectional_attention")?;
    let mut config = base::with_biases(fields, defaults)?;
    config.feed_forward.bias = false;
    config.embedding_scale = Some((config.hidden_size as f64).sqrt() as f32);
    config.head.tie_word_embeddings = true;
    Ok(config)
}

/// Gemma 1. Its `gelu` always meant the tanh approximation.
pub(super) fn gemma(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = read(fields, &GEMMA)?;
    if fields.optional_text("hidden_act")? == Some("gelu") {
        config.feed_forward.activation = Activation::GeluTanh;
    }
    Ok(config)
}

/// Reads the common part of Gemma 2 and 3, without the pattern of layers.
fn newer(fields: &Fields, context: usize) -> Result<DecoderConfig> {
    let defaults = Defaults {
        num_kv_heads: Some(4),
        max_position_embeddings: context,
        activation: ("hidden_activation", "gelu_pytorch_tanh"),
        ..GEMMA
    };
    let mut config = read(fields, &defaults)?;
    config.block = BLOCK;
    config.attention.scale = (positive(fields, "query_pre_attn_scalar", 256.0)? as f32).sqrt().recip();
    Ok(config)
}

/// Gemma 2: every other layer has a window. Scores and logits have soft caps.
pub(super) fn gemma2(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = newer(fields, 8192)?;
    config.attention.softcap = nullable(fields, "attn_logit_softcapping", Some(50.0))?;
    config.head.softcap = nullable(fields, "final_logit_softcapping", Some(30.0))?;
    let sliding = layers::kinds(fields, config.layers.len(), |layer| layer.is_multiple_of(2))?;
    layers::set_window(fields, &mut config, &sliding, layers::window(fields, Some(4096))?)?;
    Ok(config)
}

/// VaultGemma: Gemma 2 without norms after attention and feed-forward.
pub(super) fn vaultgemma(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = gemma2(fields)?;
    config.block =
        BlockConfig { pre_feedforward_norm: Some("pre_feedforward_layernorm"), ..BlockConfig::LLAMA };
    Ok(config)
}

/// Gemma 3: most layers have a window and a separate theta of rope. Heads are normalized.
pub(super) fn gemma3_text(fields: &Fields) -> Result<DecoderConfig> {
    let fields =
        &fields.with_default("vocab_size", 262_208.into()).with_default("num_attention_heads", 8.into());
    let mut config = newer(fields, 131_072)?;
    // Gemma 3 reads a soft cap of scores, but does not use it.
    config.head.softcap = nullable(fields, "final_logit_softcapping", None)?;
    base::normalize_heads(&mut config, QkNormScope::Head);
    let pattern = fields.optional_size("sliding_window_pattern")?.unwrap_or(6);
    let sliding = layers::kinds(fields, config.layers.len(), |layer| !(layer + 1).is_multiple_of(pattern))?;
    layers::set_window(fields, &mut config, &sliding, layers::window(fields, Some(4096))?)?;
    let (global, local) = ropes(fields, config.attention.head_dim, config.max_position_embeddings)?;
    for (layer, sliding) in config.layers.iter_mut().zip(sliding) {
        layer.rope = Some(if sliding { local.clone() } else { global.clone() });
    }
    Ok(config)
}

/// Returns the ropes of layers without a window and of layers with one.
pub(super) fn ropes(fields: &Fields, head_dim: usize, context: usize) -> Result<(RopeConfig, RopeConfig)> {
    let defaults = RopeDefaults {
        theta: 1e6,
        partial_rotary_factor: None,
        interleaved: false,
        max_position_embeddings: context,
        original_max_position_embeddings: None,
        has_dynamic_alpha: false,
        mrope_section: None,
    };
    let global = RopeConfig::read_for(fields, FULL, head_dim, defaults)?;
    let base = positive(fields, "rope_local_base_freq", 10_000.0)?;
    // `rope_theta` is for the other layers.
    let fields = fields.without("rope_theta");
    let local = RopeConfig::of_kind(&fields, SLIDING, head_dim, RopeDefaults { theta: base, ..defaults })?;
    Ok((global, local))
}

/// The text part of Gemma 3.
pub(super) fn gemma3(fields: &Fields) -> Result<DecoderConfig> {
    let mut text = base::text_section(fields)?;
    if let Some(vocabulary) = fields.optional_size("vocab_size")? {
        text = text.with_default("vocab_size", vocabulary.into());
    }
    let mut config = gemma3_text(&text)?;
    config.tensors.nested = true;
    Ok(config)
}
