//! Llama, and families that differ from it only slightly.

use serde_json::json;

use super::base::{self, Defaults, LLAMA, flag, positive};
use super::layers;
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::AttentionTemperatureConfig;
use crate::model::config::DecoderConfig;
use crate::model::head::LogitScale;

/// Llama 1, 2 and 3. Layers have a window if `layer_types` says so.
pub(super) fn llama(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = base::with_biases(fields, &LLAMA)?;
    let sliding = layers::kinds(fields, config.layers.len(), |_| false)?;
    layers::set_window(fields, &mut config, &sliding, layers::window(fields, None)?)?;
    Ok(config)
}

/// IQuest Coder: llama with other defaults and the windows of Qwen 2. The reference is its `configuration_iquestcoder.py`.
pub(super) fn iquestcoder(fields: &Fields) -> Result<DecoderConfig> {
    if fields.has("clip_qkv") {
        return Err(fields.error("clip_qkv", "is set; clipping is not supported"));
    }
    let defaults = Defaults {
        num_kv_heads: Some(8),
        head_dim: Some(128),
        max_position_embeddings: 16_384,
        eps: ("rms_norm_eps", 1e-5),
        rope_theta: 500_000.0,
        ..LLAMA
    };
    let mut config = base::with_biases(fields, &defaults)?;
    layers::slide_upper(fields, &mut config, None, 0)?;
    Ok(config)
}

/// Code World Model: llama with a window in three of four layers.
pub(super) fn cwm(fields: &Fields) -> Result<DecoderConfig> {
    let usual = json!({
        "rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    });
    let fields = &base::with_default_rope(fields, usual);
    let defaults = Defaults {
        num_kv_heads: Some(8),
        head_dim: Some(128),
        max_position_embeddings: 131_072,
        eps: ("rms_norm_eps", 1e-5),
        rope_theta: 1e6,
        ..LLAMA
    };
    let mut config = base::read(fields, &defaults)?;
    let sliding = layers::kinds(fields, config.layers.len(), |layer| !layer.is_multiple_of(4))?;
    layers::set_window(fields, &mut config, &sliding, layers::window(fields, Some(8192))?)?;
    Ok(config)
}

const MISTRAL: Defaults = Defaults { num_kv_heads: Some(8), max_position_embeddings: 131_072, ..LLAMA };

/// Mistral and Ministral: layers have a window of 4096 positions by default.
pub(super) fn mistral(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = base::with_biases(fields, &MISTRAL)?;
    layers::slide_usually(fields, &mut config, layers::window(fields, Some(4096))?)?;
    Ok(config)
}

/// Ministral 3: queries are scaled by a factor that grows with their position.
pub(super) fn ministral3(fields: &Fields) -> Result<DecoderConfig> {
    let usual = json!({
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
    });
    let fields = &base::with_default_rope(fields, usual);
    let defaults = Defaults {
        head_dim: Some(128),
        max_position_embeddings: 262_144,
        eps: ("rms_norm_eps", 1e-5),
        ..MISTRAL
    };
    let mut config = base::read(fields, &defaults)?;
    layers::slide_usually(fields, &mut config, layers::window(fields, None)?)?;
    let key = if fields.has("rope_scaling") { "rope_scaling" } else { "rope_parameters" };
    if let Some(rope) = fields.section(key)?
        && let Some(growth) = rope.optional_positive("llama_4_scaling_beta")?
    {
        let step =
            positive(&rope, "original_max_position_embeddings", config.max_position_embeddings as f64)?;
        config.attention.temperature =
            Some(AttentionTemperatureConfig { scale: growth as f32, floor_scale: step as f32 });
    }
    Ok(config)
}

/// Granite: embeddings, residuals, scores and logits have factors.
pub(super) fn granite(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = base::with_biases(fields, &LLAMA)?;
    config.embedding_scale = Some(positive(fields, "embedding_multiplier", 1.0)? as f32);
    config.block.residual_multiplier = Some(positive(fields, "residual_multiplier", 1.0)? as f32);
    config.attention.scale = positive(fields, "attention_multiplier", 1.0)? as f32;
    config.head.scale = Some(LogitScale::Over(positive(fields, "logits_scaling", 1.0)? as f32));
    Ok(config)
}

/// MiniCPM. The reference is its `configuration_minicpm.py`.
pub(super) fn minicpm(fields: &Fields) -> Result<DecoderConfig> {
    if fields.has("sparse_config") {
        return Err(fields.error("sparse_config", "is set; sparse attention is not supported"));
    }
    let mut config = base::read(fields, &LLAMA)?;
    config.head.tie_word_embeddings = true;
    let layers = config.layers.len() as f64;
    config.attention.biases.qkv = flag(fields, "attention_bias", false)?;
    config.attention.biases.output = config.attention.biases.qkv;
    config.embedding_scale = Some(positive(fields, "scale_emb", 1.0)? as f32);
    config.block.residual_multiplier = Some((positive(fields, "scale_depth", 1.0)? / layers.sqrt()) as f32);
    let growth = config.hidden_size as f64 / positive(fields, "dim_model_base", 1.0)?;
    config.head.scale = Some(LogitScale::Over(growth as f32));
    Ok(config)
}

/// SmolLM 3: every fourth layer has no rope.
pub(super) fn smollm3(fields: &Fields) -> Result<DecoderConfig> {
    let defaults =
        Defaults { num_kv_heads: Some(4), max_position_embeddings: 32_768, rope_theta: 2e6, ..LLAMA };
    let mut config = base::with_biases(fields, &defaults)?;
    let count = config.layers.len();
    let interval = fields.optional_size("no_rope_layer_interval")?.unwrap_or(4);
    let mut knows =
        fields.numbers("no_rope_layers")?.into_iter().map(|number| number != 0.0).collect::<Vec<_>>();
    if knows.is_empty() {
        knows = (1..=count).map(|layer| !layer.is_multiple_of(interval)).collect();
    }
    if knows.len() != count {
        let message = format_args!("has {} entries; there are {count} layers", knows.len());
        return Err(fields.error("no_rope_layers", message));
    }
    let used = layers::window_if_used(fields, None)?;
    let sliding = layers::kinds(fields, count, |layer| used.is_some() && !knows[layer])?;
    // `layer_types` takes precedence over the other keys.
    let window = if fields.has("layer_types") { layers::window(fields, None)? } else { used };
    layers::set_window(fields, &mut config, &sliding, window)?;
    for (layer, knows) in config.layers.iter_mut().zip(knows) {
        layer.rope = layer.rope.take().filter(|_| knows);
    }
    Ok(config)
}

/// Seed-OSS: separate flags for the input and output biases of attention.
pub(super) fn seed_oss(fields: &Fields) -> Result<DecoderConfig> {
    let defaults =
        Defaults { num_kv_heads: Some(8), head_dim: Some(128), max_position_embeddings: 524_288, ..LLAMA };
    let mut config = base::read(fields, &defaults)?;
    config.attention.biases.qkv = flag(fields, "attention_bias", true)?;
    config.attention.biases.output = flag(fields, "attention_out_bias", false)?;
    config.attention.biases.as_found = !fields.has("attention_bias");
    config.feed_forward.bias = flag(fields, "mlp_bias", false)?;
    Ok(config)
}

/// Helium: rope is interleaved.
pub(super) fn helium(fields: &Fields) -> Result<DecoderConfig> {
    let defaults = Defaults {
        num_kv_heads: Some(20),
        head_dim: Some(128),
        max_position_embeddings: 4096,
        eps: ("rms_norm_eps", 1e-8),
        rope_theta: 100_000.0,
        interleaved: true,
        ..LLAMA
    };
    let mut config = base::with_biases(fields, &defaults)?;
    config.attention.biases.output = false;
    Ok(config)
}

/// ERNIE 4.5, dense: rope is interleaved.
pub(super) fn ernie4_5(fields: &Fields) -> Result<DecoderConfig> {
    let defaults = Defaults {
        num_kv_heads: Some(2),
        head_dim: Some(128),
        max_position_embeddings: 131_072,
        eps: ("rms_norm_eps", 1e-5),
        rope_theta: 500_000.0,
        interleaved: true,
        ..LLAMA
    };
    let mut config = base::read(fields, &defaults)?;
    let bias = flag(fields, "use_bias", false)?;
    (config.attention.biases.qkv, config.attention.biases.output, config.feed_forward.bias) =
        (bias, bias, bias);
    Ok(config)
}

/// InternLM 3: separate names for the flags of biases.
pub(super) fn internlm3(fields: &Fields) -> Result<DecoderConfig> {
    let defaults = Defaults {
        num_kv_heads: Some(2),
        head_dim: Some(128),
        max_position_embeddings: 32_768,
        eps: ("rms_norm_eps", 1e-5),
        ..LLAMA
    };
    let mut config = base::with_biases(fields, &defaults)?;
    config.attention.biases.qkv = flag(fields, "qkv_bias", config.attention.biases.qkv)?;
    config.feed_forward.bias = flag(fields, "bias", config.feed_forward.bias)?;
    config.attention.biases.output = config.feed_forward.bias;
    // The references disagree about the flag that applies to the output projection.
    config.attention.biases.as_found = config.attention.biases.qkv != config.feed_forward.bias;
    Ok(config)
}
