//! Families whose layers are mixtures of experts.

use serde_json::json;

use super::base::{self, Defaults, LLAMA, flag, positive};
use super::layers;
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::QkNormScope;
use crate::model::config::DecoderConfig;
use crate::model::moe::ExpertTensors;
use crate::model::moe::{ExpertActivation, MoeConfig};
use crate::model::tensors::TensorNames;

/// Mixtral.
pub(super) fn mixtral(fields: &Fields) -> Result<DecoderConfig> {
    let defaults = Defaults {
        num_kv_heads: Some(8),
        max_position_embeddings: 131_072,
        eps: ("rms_norm_eps", 1e-5),
        rope_theta: 1e6,
        ..LLAMA
    };
    let mut config = base::read(fields, &defaults)?;
    layers::slide_all(fields, &mut config, layers::window(fields, None)?)?;
    config.tensors = TensorNames { renamed: &[(".mlp.", ".block_sparse_moe.")], nested: false };
    let experts = MoeConfig {
        num_experts: count(fields, 8)?,
        num_experts_per_tok: fields.optional_size("num_experts_per_tok")?.unwrap_or(2),
        intermediate_size: config.feed_forward.intermediate_size,
        norm_topk_prob: true,
        bias: false,
        activation: ExpertActivation::Gated(config.feed_forward.activation),
        router: "gate",
        tensors: ExpertTensors::Each(["w1", "w3", "w2"]),
    };
    Ok(sparse(config, experts, |_| true))
}

/// Qwen 3 with experts in some of its layers.
pub(super) fn qwen3_moe(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &fields.with_default("intermediate_size", 6144.into());
    let mut config = base::with_biases(
        fields,
        &Defaults { num_kv_heads: Some(4), max_position_embeddings: 32_768, ..LLAMA },
    )?;
    config.feed_forward.bias = false;
    base::normalize_heads(&mut config, QkNormScope::Head);
    layers::slide_all(fields, &mut config, layers::window_if_used(fields, Some(4096))?)?;
    let experts = MoeConfig {
        num_experts: count(fields, 128)?,
        num_experts_per_tok: fields.optional_size("num_experts_per_tok")?.unwrap_or(8),
        intermediate_size: fields.optional_size("moe_intermediate_size")?.unwrap_or(768),
        norm_topk_prob: flag(fields, "norm_topk_prob", false)?,
        bias: false,
        activation: ExpertActivation::Gated(config.feed_forward.activation),
        router: "gate",
        tensors: ExpertTensors::Each(["gate_proj", "up_proj", "down_proj"]),
    };
    let step = fields.optional_size("decoder_sparse_step")?.unwrap_or(1);
    let dense = fields.numbers("mlp_only_layers")?;
    Ok(sparse(config, experts, |layer| (layer + 1).is_multiple_of(step) && !dense.contains(&(layer as f64))))
}

/// OLMoE: queries and keys are normalized over their whole width.
pub(super) fn olmoe(fields: &Fields) -> Result<DecoderConfig> {
    if fields.has("clip_qkv") {
        return Err(fields.error("clip_qkv", "is set; clipping is not supported"));
    }
    let defaults = Defaults { max_position_embeddings: 4096, eps: ("rms_norm_eps", 1e-5), ..LLAMA };
    let mut config = base::with_biases(fields, &defaults)?;
    base::normalize_heads(&mut config, QkNormScope::Width);
    let experts = MoeConfig {
        num_experts: count(fields, 64)?,
        num_experts_per_tok: fields.optional_size("num_experts_per_tok")?.unwrap_or(8),
        intermediate_size: config.feed_forward.intermediate_size,
        norm_topk_prob: flag(fields, "norm_topk_prob", false)?,
        bias: false,
        activation: ExpertActivation::Gated(config.feed_forward.activation),
        router: "gate",
        tensors: ExpertTensors::Each(["gate_proj", "up_proj", "down_proj"]),
    };
    Ok(sparse(config, experts, |_| true))
}

/// gpt-oss: every other layer sees a window; heads have sinks; experts have biases and are clamped.
pub(super) fn gpt_oss(fields: &Fields) -> Result<DecoderConfig> {
    let usual = json!({
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
        "original_max_position_embeddings": 4096,
    });
    let fields = &base::with_usual_rope(fields, usual);
    let defaults = Defaults {
        num_kv_heads: Some(8),
        head_dim: Some(64),
        max_position_embeddings: 131_072,
        eps: ("rms_norm_eps", 1e-5),
        rope_theta: 150_000.0,
        ..LLAMA
    };
    let mut config = base::read(fields, &defaults)?;
    config.attention.sinks = true;
    config.attention.biases.qkv = flag(fields, "attention_bias", true)?;
    config.attention.biases.output = config.attention.biases.qkv;
    config.attention.biases.as_found = !fields.has("attention_bias");
    let sliding = layers::kinds(fields, config.layers.len(), |layer| layer.is_multiple_of(2))?;
    layers::slide(fields, &mut config, &sliding, layers::window(fields, Some(128))?)?;
    let experts = MoeConfig {
        num_experts: count(fields, 128)?,
        num_experts_per_tok: fields.optional_size("num_experts_per_tok")?.unwrap_or(4),
        intermediate_size: config.feed_forward.intermediate_size,
        norm_topk_prob: true,
        bias: true,
        activation: ExpertActivation::Clamped {
            alpha: positive(fields, "swiglu_alpha", 1.702)? as f32,
            limit: positive(fields, "swiglu_limit", 7.0)? as f32,
        },
        router: "router",
        tensors: ExpertTensors::Interleaved,
    };
    Ok(sparse(config, experts, |_| true))
}

/// How many experts there are; the key has two names.
fn count(fields: &Fields, usual: usize) -> Result<usize> {
    let count = fields.optional_size("num_local_experts")?;
    Ok(count.or(fields.optional_size("num_experts")?).unwrap_or(usual))
}

fn sparse(mut config: DecoderConfig, experts: MoeConfig, is_sparse: impl Fn(usize) -> bool) -> DecoderConfig {
    for (index, layer) in config.layers.iter_mut().enumerate() {
        layer.is_moe = is_sparse(index);
    }
    config.experts = Some(experts);
    config
}
