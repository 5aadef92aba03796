//! Families with separate layouts of their tensors.

use serde_json::json;

use super::base::{self, Defaults, LLAMA, flag, positive, refuse};
use super::{layers, mixtures, routed};
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::Projections;
use crate::model::attention::QkNormScope;
use crate::model::config::BlockConfig;
use crate::model::config::DecoderConfig;
use crate::model::feed_forward::FeedForwardInput;
use crate::model::moe::{
    CorrectionBias, ExpertGroups, GroupScore, MoeConfig, RoutingConfig, ScoringFunc, SharedExpertConfig,
};
use crate::model::norm::NormKind;
use crate::model::rope::{RopeConfig, RopeDefaults};
use crate::model::tensors::TensorNames;

/// Phi 3 and 4: fused projections, and a rope factor for each pair.
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
    layers::set_window_of_all(fields, &mut config, layers::window(fields, None)?)?;
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

/// GLM 4 of 2025: like [`glm`], with additional norms after attention and feed-forward.
pub(super) fn glm4(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = glm(fields)?;
    config.block = BlockConfig {
        post_attention_norm: Some("post_self_attn_layernorm"),
        post_feedforward_norm: Some("post_mlp_layernorm"),
        ..BlockConfig::LLAMA
    };
    Ok(config)
}

/// InternLM 2: llama with other names and one projection grouped by key head. The reference is its `configuration_internlm2.py`.
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
    layers::set_window_of_all(fields, &mut config, layers::window(fields, None)?)?;
    Ok(config)
}

/// Apertus: heads are normalized, and the feed-forward block has no gate and a learned activation.
pub(super) fn apertus(fields: &Fields) -> Result<DecoderConfig> {
    let usual = json!({
        "rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    });
    let fields = &base::with_default_rope(fields, usual);
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

/// EXAONE 3 and 3.5: llama with other names. The reference is its `configuration_exaone.py`.
pub(super) fn exaone(fields: &Fields) -> Result<DecoderConfig> {
    let layers = fields.optional_size("num_layers")?.or(fields.optional_size("num_hidden_layers")?);
    let fields =
        &fields.without("num_hidden_layers").with_default("num_hidden_layers", layers.unwrap_or(32).into());
    let defaults =
        Defaults { eps: ("layer_norm_epsilon", 1e-5), activation: ("activation_function", "silu"), ..LLAMA };
    let mut config = base::with_biases(fields, &defaults)?;
    config.tensors = TensorNames {
        renamed: &[
            ("model.layers.", "transformer.h."),
            ("model.embed_tokens", "transformer.wte"),
            ("model.norm", "transformer.ln_f"),
            ("self_attn.", "attn.attention."),
            ("attention.o_proj", "attention.out_proj"),
            ("input_layernorm", "ln_1"),
            ("post_attention_layernorm", "ln_2"),
            ("mlp.gate_proj", "mlp.c_fc_0"),
            ("mlp.up_proj", "mlp.c_fc_1"),
            ("mlp.down_proj", "mlp.c_proj"),
        ],
        nested: false,
    };
    Ok(config)
}

/// Ling and Ring: experts by a softmax, or by sigmoids with a correction bias. The reference is `configuration_bailing_moe_v2.py`.
pub(super) fn bailing_moe(fields: &Fields) -> Result<DecoderConfig> {
    for key in ["norm_head", "use_sliding_window", "use_bias"] {
        refuse(fields, key)?;
    }
    let defaults = Defaults { partial_rotary_factor: Some(1.0), rope_theta: 600_000.0, ..LLAMA };
    let head_dim = base::head_dim(fields, &defaults)?;
    let rotary = fields.optional_size("rotary_dim")?.map(|rotary| rotary as f64 / head_dim as f64);
    let fields = &match rotary {
        Some(rotary) => {
            fields.without("partial_rotary_factor").with_default("partial_rotary_factor", rotary.into())
        }
        None => fields.clone(),
    };
    let mut config = base::read(fields, &defaults)?;
    config.attention.biases.qkv = flag(fields, "use_qkv_bias", false)?;
    config.attention.projections = Projections::InOne;
    if flag(fields, "use_qk_norm", false)? {
        base::normalize_heads(&mut config, QkNormScope::Head);
    }
    config.draft_layers = routed::draft_layers(fields)?;
    config.tensors = TensorNames {
        renamed: &[
            ("model.embed_tokens", "model.word_embeddings"),
            ("self_attn.qkv_proj", "attention.query_key_value"),
            ("self_attn.o_proj", "attention.dense"),
            ("self_attn.q_norm", "attention.query_layernorm"),
            ("self_attn.k_norm", "attention.key_layernorm"),
        ],
        nested: false,
    };
    let experts = bailing_experts(fields)?;
    routed::sparse_after_dense(fields, config, experts, 0)
}

fn bailing_experts(fields: &Fields) -> Result<MoeConfig> {
    let scoring_func = match fields.optional_text("score_function")?.unwrap_or("softmax") {
        "softmax" => ScoringFunc::Softmax,
        "sigmoid" => ScoringFunc::Sigmoid,
        other => {
            let message = format_args!("{other:?} is not supported; supported are softmax and sigmoid");
            return Err(fields.error("score_function", message));
        }
    };
    let n_group = fields.optional_size("n_group")?.unwrap_or(1);
    let topk_group = fields.optional_size("topk_group")?.unwrap_or(4).min(n_group);
    let groups = ExpertGroups { n_group, topk_group, score: GroupScore::BestTwo };
    let corrected = flag(fields, "moe_router_enable_expert_bias", false)?;
    let width = fields.size("moe_intermediate_size")?;
    let count = fields.optional_count("num_shared_experts")?.unwrap_or(0);
    let is_shared = count > 0 && flag(fields, "moe_router_enable_shared_expert", true)?;
    let shared = fields.optional_size("moe_shared_expert_intermediate_size")?.unwrap_or(width);
    let experts = mixtures::read(fields, 16, 2, width)?;
    // The score of a single expert is not normalized.
    let normalizes = flag(fields, "norm_topk_prob", true)? && experts.num_experts_per_tok > 1;
    let experts = MoeConfig {
        routing: RoutingConfig {
            scoring_func,
            correction_bias: corrected
                .then_some(CorrectionBias { name: "gate.expert_bias", as_found: false }),
            groups: Some(groups),
            routed_scaling_factor: positive(fields, "routed_scaling_factor", 1.0)? as f32,
            ..RoutingConfig::softmax(normalizes)
        },
        shared: is_shared.then(|| SharedExpertConfig::gated("shared_experts", count * shared)),
        ..experts
    };
    routed::check_groups(fields, &experts, groups)?;
    Ok(experts)
}
