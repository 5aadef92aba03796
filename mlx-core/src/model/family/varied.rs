//! Families that lay out their tensors in their own ways.

use serde_json::json;

use super::base::{self, Defaults, LLAMA, flag};
use super::layers;
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::Projections;
use crate::model::attention::QkNormScope;
use crate::model::config::BlockConfig;
use crate::model::config::DecoderConfig;
use crate::model::feed_forward::FeedForwardInput;
use crate::model::norm::NormKind;
use crate::model::rope::{RopeConfig, RopeDefaults};
use crate::model::tensors::TensorNames;

/// Phi 3 and 4: projections in one; a rope factor for each pair.
pub(super) fn phi3(fields: &Fields) -> Result<DecoderConfig> {
    let defaults = Defaults {
        max_position_embeddings: 4096,
        eps: ("rms_norm_eps", 1e-5),
        partial_rotary_factor: Some(1.0),
        ..LLAMA
    };
    for key in ["rope_scaling", "rope_parameters"] {
        if let Some(section) = fields.section(key)?
            && let Some("yarn") = section.optional_text("type")?
        {
            return Err(section.error("type", "\"yarn\" is not supported for phi3; supported is longrope"));
        }
    }
    let mut config = base::read(fields, &defaults)?;
    let rope = RopeDefaults {
        original_max_position_embeddings: Some(4096),
        ..base::rope_defaults(fields, &defaults)?
    };
    let rope = RopeConfig::read(fields, config.attention.head_dim, rope)?;
    for layer in &mut config.layers {
        layer.rope = Some(rope.clone());
    }
    config.attention.projections = Projections::InOne;
    config.feed_forward.input = FeedForwardInput::GatedInOne;
    layers::slide_all(fields, &mut config, layers::window(fields, None)?)?;
    Ok(config)
}

const GLM: Defaults = Defaults {
    num_kv_heads: Some(2),
    head_dim: Some(128),
    max_position_embeddings: 131_072,
    eps: ("rms_norm_eps", 1.562_5e-7),
    partial_rotary_factor: Some(0.5),
    interleaved: true,
    ..LLAMA
};

/// GLM 4 of 2024: interleaved rope on half of each head.
pub(super) fn glm(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = base::read(fields, &GLM)?;
    config.attention.biases.qkv = flag(fields, "attention_bias", true)?;
    config.attention.biases.as_found = !fields.has("attention_bias");
    config.feed_forward.input = FeedForwardInput::GatedInOne;
    Ok(config)
}

/// GLM 4 of 2025: the same, with norms after attention and feed-forward, too.
pub(super) fn glm4(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = glm(fields)?;
    config.block = BlockConfig {
        post_attention_norm: Some("post_self_attn_layernorm"),
        post_feedforward_norm: Some("post_mlp_layernorm"),
        ..BlockConfig::LLAMA
    };
    Ok(config)
}

/// InternLM 2 (its own `configuration_internlm2.py` is the reference): llama under other names, heads grouped in one projection.
pub(super) fn internlm2(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = base::read(fields, &LLAMA)?;
    config.attention.biases.qkv = flag(fields, "bias", true)?;
    config.attention.biases.output = config.attention.biases.qkv;
    config.attention.projections = Projections::ByKeyHead;
    config.block = BlockConfig {
        input_norm: Some("attention_norm"),
        pre_feedforward_norm: Some("ffn_norm"),
        ..BlockConfig::LLAMA
    };
    config.tensors = TensorNames {
        renamed: &[
            ("model.embed_tokens", "model.tok_embeddings"),
            ("self_attn.qkv_proj", "attention.wqkv"),
            ("self_attn.o_proj", "attention.wo"),
            ("mlp.gate_proj", "feed_forward.w1"),
            ("mlp.up_proj", "feed_forward.w3"),
            ("mlp.down_proj", "feed_forward.w2"),
            ("lm_head", "output"),
        ],
        nested: false,
    };
    Ok(config)
}

/// StableLM: layer norms with biases, rope on a quarter of each head.
pub(super) fn stablelm(fields: &Fields) -> Result<DecoderConfig> {
    let defaults = Defaults {
        num_kv_heads: Some(32),
        max_position_embeddings: 4096,
        eps: ("layer_norm_eps", 1e-5),
        norm: NormKind::LayerWithBias,
        partial_rotary_factor: Some(0.25),
        ..LLAMA
    };
    let mut config = base::read(fields, &defaults)?;
    config.attention.biases.qkv = flag(fields, "use_qkv_bias", false)?;
    if flag(fields, "qk_layernorm", false)? {
        base::normalize_heads(&mut config, QkNormScope::HeadOwnTensors);
        config.tensors = TensorNames {
            renamed: &[
                ("self_attn.q_norm", "self_attn.q_layernorm"),
                ("self_attn.k_norm", "self_attn.k_layernorm"),
            ],
            nested: false,
        };
    }
    if flag(fields, "use_parallel_residual", false)? {
        config.block =
            BlockConfig { pre_feedforward_norm: None, parallel_residual: true, ..BlockConfig::LLAMA };
    }
    Ok(config)
}

/// StarCoder 2: layer norms and biases everywhere, a feed-forward block without a gate.
pub(super) fn starcoder2(fields: &Fields) -> Result<DecoderConfig> {
    let defaults = Defaults {
        num_kv_heads: Some(2),
        max_position_embeddings: 4096,
        eps: ("norm_epsilon", 1e-5),
        norm: NormKind::LayerWithBias,
        activation: ("hidden_act", "gelu_pytorch_tanh"),
        ..LLAMA
    };
    let mut config = base::read(fields, &defaults)?;
    let bias = flag(fields, "use_bias", true)?;
    (config.attention.biases.qkv, config.attention.biases.output, config.feed_forward.bias) =
        (bias, bias, bias);
    config.feed_forward.input = FeedForwardInput::Plain;
    config.tensors = TensorNames {
        renamed: &[("mlp.up_proj", "mlp.c_fc"), ("mlp.down_proj", "mlp.c_proj")],
        nested: false,
    };
    layers::slide_all(fields, &mut config, layers::window(fields, None)?)?;
    Ok(config)
}

/// Apertus: heads are normalized, and a feed-forward block without a gate learns how it bends.
pub(super) fn apertus(fields: &Fields) -> Result<DecoderConfig> {
    let usual = json!({
        "rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    });
    let fields = &base::with_usual_rope(fields, usual);
    let defaults = Defaults {
        max_position_embeddings: 65_536,
        eps: ("rms_norm_eps", 1e-5),
        rope_theta: 12e6,
        activation: ("hidden_act", "xielu"),
        ..LLAMA
    };
    let mut config = base::with_biases(fields, &defaults)?;
    config.feed_forward.input = FeedForwardInput::Plain;
    base::normalize_heads(&mut config, QkNormScope::Head);
    config.block = BlockConfig {
        input_norm: Some("attention_layernorm"),
        pre_feedforward_norm: Some("feedforward_layernorm"),
        ..BlockConfig::LLAMA
    };
    Ok(config)
}
