//! Qwen 2 and 3, the text of their multimodal models, and Hunyuan, which also normalizes heads.

use super::base::{self, Defaults, LLAMA, flag, refuse};
use super::layers;
use crate::config::{Fields, thinker};
use crate::error::Result;
use crate::model::attention::{QkNormConfig, QkNormScope};
use crate::model::config::DecoderConfig;
use crate::model::rope::MropeSection;
use crate::model::tensors::TensorNames;

const QWEN: Defaults = Defaults { num_kv_heads: Some(32), max_position_embeddings: 32_768, ..LLAMA };

/// The numbers of pairs for time, height and width in Qwen 3 VL.
pub(super) const QWEN3_VL_SECTION: MropeSection = MropeSection::Interleaved([24, 20, 20]);

/// Qwen 2: queries, keys and values have biases.
pub(super) fn qwen2(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = base::read(fields, &QWEN)?;
    config.attention.biases.qkv = true;
    layers::slide_upper(fields, &mut config, Some(4096), 28)?;
    Ok(config)
}

/// Qwen 3: heads are normalized.
pub(super) fn qwen3(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = base::with_biases(fields, &Defaults { head_dim: Some(128), ..QWEN })?;
    config.feed_forward.bias = false;
    base::normalize_heads(&mut config, QkNormScope::Head);
    layers::slide_upper(fields, &mut config, Some(4096), 28)?;
    Ok(config)
}

/// The text of Qwen3-ASR, which is Qwen 3 with other defaults.
pub(super) fn qwen3_asr(fields: &Fields) -> Result<DecoderConfig> {
    let fields = thinker(fields)?;
    if fields.optional_text("model_type")? == Some("qwen3_forced_aligner") {
        let message =
            "is qwen3_forced_aligner, which finds the times of known words; for the words, use Qwen3-ASR";
        return Err(fields.error("model_type", message));
    }
    let text = base::text_section(&fields.with_default("tie_word_embeddings", true.into()))?;
    let defaults = [
        ("hidden_size", 2048),
        ("intermediate_size", 6144),
        ("num_hidden_layers", 28),
        ("num_attention_heads", 16),
        ("num_key_value_heads", 8),
        ("max_position_embeddings", 65_536),
        ("vocab_size", 151_936),
    ];
    let text = defaults.into_iter().fold(text, |text, (key, size)| text.with_default(key, size.into()));
    let mut config = qwen3(&text)?;
    config.tensors.nested = true;
    Ok(config)
}

/// MiMo 7B: Qwen 2 without windows. The reference is its `configuration_mimo.py`.
pub(super) fn mimo(fields: &Fields) -> Result<DecoderConfig> {
    refuse(fields, "use_sliding_window")?;
    let mut config = base::read(fields, &QWEN)?;
    config.attention.biases.qkv = flag(fields, "attention_bias", true)?;
    Ok(config)
}

/// The numbers of pairs for time, height and width in Qwen 2 VL.
const QWEN2_VL_SECTION: MropeSection = MropeSection::Sequential([16, 24, 24]);

/// The text of Qwen 2 and 2.5 VL.
pub(super) fn qwen2_vl(fields: &Fields) -> Result<DecoderConfig> {
    let text = base::text_section_or_all(fields)?;
    let defaults = Defaults {
        num_kv_heads: Some(8),
        eps: ("rms_norm_eps", 1e-5),
        rope_theta: 1e6,
        mrope_section: Some(QWEN2_VL_SECTION),
        ..QWEN
    };
    let mut config = base::read(&text, &defaults)?;
    config.attention.biases.qkv = true;
    layers::slide_upper(&text, &mut config, Some(4096), 80)?;
    config.tensors.nested = true;
    Ok(config)
}

/// The text of Qwen 3 VL.
pub(super) fn qwen3_vl(fields: &Fields) -> Result<DecoderConfig> {
    let text = base::text_section_or_all(fields)?;
    let defaults = Defaults {
        head_dim: Some(128),
        max_position_embeddings: 128_000,
        rope_theta: 500_000.0,
        mrope_section: Some(QWEN3_VL_SECTION),
        ..QWEN
    };
    let mut config = base::with_biases(&text, &defaults)?;
    config.feed_forward.bias = false;
    base::normalize_heads(&mut config, QkNormScope::Head);
    config.tensors.nested = true;
    Ok(config)
}

/// Hunyuan, dense: heads are normalized after rope.
pub(super) fn hunyuan_v1_dense(fields: &Fields) -> Result<DecoderConfig> {
    let defaults = Defaults { eps: ("rms_norm_eps", 1e-5), has_dynamic_alpha: true, ..LLAMA };
    let mut config = base::with_biases(fields, &defaults)?;
    config.feed_forward.bias = false;
    if flag(fields, "use_qk_norm", true)? {
        base::normalize_heads(&mut config, QkNormScope::Head);
        config.attention.norm = config.attention.norm.map(QkNormConfig::after_rope);
    }
    config.tensors = TensorNames {
        renamed: &[
            ("self_attn.q_norm", "self_attn.query_layernorm"),
            ("self_attn.k_norm", "self_attn.key_layernorm"),
        ],
        nested: false,
    };
    Ok(config)
}
