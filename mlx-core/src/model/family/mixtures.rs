//! Families with mixtures of experts.

use serde_json::json;

use super::base::{self, Defaults, LLAMA, flag, positive, refuse};
use super::layers;
use super::qwen::QWEN3_VL_SECTION;
use crate::config::Fields;
use crate::error::Result;
use crate::model::activation::Activation;
use crate::model::attention::QkNormScope;
use crate::model::config::DecoderConfig;
use crate::model::feed_forward::FeedForwardInput;
use crate::model::moe::{
    ExpertActivation, ExpertTensors, MoeConfig, RoutingConfig, ScoringFunc, SharedExpertConfig,
};
use crate::model::norm::NormKind;
use crate::model::rope::MropeSection;
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
    layers::set_window_of_all(fields, &mut config, layers::window(fields, None)?)?;
    config.tensors = TensorNames { renamed: &[(".mlp.", ".block_sparse_moe.")], nested: false };
    let width = config.feed_forward.intermediate_size;
    let tensors = ExpertTensors::Each(["w1", "w3", "w2"]);
    let experts = MoeConfig { tensors, ..read(fields, 8, 2, width)? };
    Ok(sparse(config, experts, |_| true))
}

/// Qwen 3 with experts in some layers.
pub(super) fn qwen3_moe(fields: &Fields) -> Result<DecoderConfig> {
    read_qwen3_moe(fields, None)
}

/// Reads Qwen 3 with experts. With `mrope_section`, rows may have positions in time, height and width.
fn read_qwen3_moe(fields: &Fields, mrope_section: Option<MropeSection>) -> Result<DecoderConfig> {
    let fields = &fields.with_default("intermediate_size", 6144.into());
    let defaults =
        Defaults { num_kv_heads: Some(4), max_position_embeddings: 32_768, mrope_section, ..LLAMA };
    let mut config = base::with_biases(fields, &defaults)?;
    config.feed_forward.bias = false;
    base::normalize_heads(&mut config, QkNormScope::Head);
    layers::set_window_of_all(fields, &mut config, layers::window_if_used(fields, Some(4096))?)?;
    let width = fields.optional_size("moe_intermediate_size")?.unwrap_or(768);
    let routing = RoutingConfig::softmax(flag(fields, "norm_topk_prob", false)?);
    let experts = MoeConfig { routing, ..read(fields, 128, 8, width)? };
    sparse_by_step(fields, config, experts)
}

/// Qwen 2 with experts, and with a gated expert that every row goes through.
pub(super) fn qwen2_moe(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &fields.with_default("intermediate_size", 5632.into());
    let defaults = Defaults { num_kv_heads: Some(16), max_position_embeddings: 32_768, ..LLAMA };
    let mut config = base::read(fields, &defaults)?;
    config.attention.biases.qkv = flag(fields, "qkv_bias", true)?;
    let window = layers::window_if_used(fields, Some(4096))?;
    let last = fields.optional_number("max_window_layers")?.unwrap_or(28.0);
    let every_other = |layer: usize| window.is_some() && layer.is_multiple_of(2) && (layer as f64) < last;
    let sliding = layers::kinds(fields, config.layers.len(), every_other)?;
    layers::set_window(fields, &mut config, &sliding, window)?;
    let width = fields.optional_size("moe_intermediate_size")?.unwrap_or(1408);
    let experts = MoeConfig {
        routing: RoutingConfig::softmax(flag(fields, "norm_topk_prob", false)?),
        shared: Some(gated_shared(fields, 5632)?),
        ..read(fields, 60, 4, width)?
    };
    sparse_by_step(fields, config, experts)
}

/// Reads the shared expert of Qwen's mixtures.
pub(super) fn gated_shared(fields: &Fields, usual: usize) -> Result<SharedExpertConfig> {
    Ok(SharedExpertConfig {
        gate: Some("shared_expert_gate"),
        ..SharedExpertConfig::gated(
            "shared_expert",
            fields.optional_size("shared_expert_intermediate_size")?.unwrap_or(usual),
        )
    })
}

/// The text of Qwen 3 VL with experts.
pub(super) fn qwen3_vl_moe(fields: &Fields) -> Result<DecoderConfig> {
    let text = base::text_section_or_all(fields)?
        .with_default("num_key_value_heads", 16.into())
        .with_default("max_position_embeddings", 128_000.into())
        .with_default("rope_theta", 500_000.into())
        .with_default("num_experts", 60.into())
        .with_default("num_experts_per_tok", 4.into())
        .with_default("moe_intermediate_size", 1408.into());
    let mut config = read_qwen3_moe(&text, Some(QWEN3_VL_SECTION))?;
    if let Some(experts) = &mut config.experts {
        (experts.routing.norm_topk_prob, experts.tensors) = (true, ExpertTensors::Transposed);
    }
    config.tensors.nested = true;
    Ok(config)
}

/// OLMoE: queries and keys are normalized over their whole width.
pub(super) fn olmoe(fields: &Fields) -> Result<DecoderConfig> {
    if fields.has("clip_qkv") {
        return Err(fields.error("clip_qkv", "is set; clipping is not supported"));
    }
    let defaults = Defaults { max_position_embeddings: 4096, eps: ("rms_norm_eps", 1e-5), ..LLAMA };
    let mut config = base::with_biases(fields, &defaults)?;
    base::normalize_heads(&mut config, QkNormScope::Width);
    let routing = RoutingConfig::softmax(flag(fields, "norm_topk_prob", false)?);
    let experts = MoeConfig { routing, ..read(fields, 64, 8, config.feed_forward.intermediate_size)? };
    Ok(sparse(config, experts, |_| true))
}

/// gpt-oss: every other layer has a window. Heads have sinks. Experts have biases and clamped activations.
pub(super) fn gpt_oss(fields: &Fields) -> Result<DecoderConfig> {
    let usual = json!({
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
        "original_max_position_embeddings": 4096,
    });
    let fields = &base::with_default_rope(fields, usual);
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
    layers::set_window(fields, &mut config, &sliding, layers::window(fields, Some(128))?)?;
    let experts = MoeConfig {
        bias: true,
        activation: ExpertActivation::Clamped {
            alpha: positive(fields, "swiglu_alpha", 1.702)? as f32,
            limit: positive(fields, "swiglu_limit", 7.0)? as f32,
        },
        router: "router",
        tensors: ExpertTensors::Interleaved,
        ..read(fields, 128, 4, config.feed_forward.intermediate_size)?
    };
    Ok(sparse(config, experts, |_| true))
}

/// Phi's mixture: two experts, with weights that do not sum to 1.
pub(super) fn phimoe(fields: &Fields) -> Result<DecoderConfig> {
    let defaults = Defaults {
        num_kv_heads: Some(8),
        max_position_embeddings: 131_072,
        eps: ("rms_norm_eps", 1e-5),
        norm: NormKind::LayerWithBias,
        ..LLAMA
    };
    let mut config = base::with_biases(fields, &defaults)?;
    config.head.bias = flag(fields, "lm_head_bias", false)?;
    layers::set_window_of_all(fields, &mut config, layers::window(fields, None)?)?;
    config.tensors = TensorNames { renamed: &[(".mlp.", ".block_sparse_moe.")], nested: false };
    let jitter = positive(fields, "router_jitter_noise", 0.01)? as f32;
    let scoring_func = ScoringFunc::SparseMixer { jitter };
    let experts = MoeConfig {
        routing: RoutingConfig { scoring_func, ..RoutingConfig::softmax(false) },
        tensors: ExpertTensors::Each(["w1", "w3", "w2"]),
        ..read(fields, 16, 2, config.feed_forward.intermediate_size)?
    };
    if experts.num_experts_per_tok != 2 {
        return Err(fields.error("num_experts_per_tok", "must be 2 in this family"));
    }
    Ok(sparse(config, experts, |_| true))
}

/// Granite's mixture, with a shared expert in some models.
pub(super) fn granitemoe(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = super::llama::granite(fields)?;
    config.tensors = GRANITE_TENSORS;
    let shared = fields.optional_count("shared_intermediate_size")?.filter(|&width| width > 0);
    let experts = granite_experts(fields, &config, shared)?;
    Ok(sparse(config, experts, |_| true))
}

/// The tensor names of Granite's mixtures.
pub(super) const GRANITE_TENSORS: TensorNames = TensorNames {
    renamed: &[
        (".mlp.shared_mlp.gate_up_proj", ".shared_mlp.input_linear"),
        (".mlp.shared_mlp.down_proj", ".shared_mlp.output_linear"),
        (".mlp.", ".block_sparse_moe."),
    ],
    nested: false,
};

/// Reads Granite's experts. With `shared`, there is also a shared expert of this width.
pub(super) fn granite_experts(
    fields: &Fields,
    config: &DecoderConfig,
    shared: Option<usize>,
) -> Result<MoeConfig> {
    let shared = shared.map(|width| SharedExpertConfig {
        input: FeedForwardInput::GatedInOne,
        ..SharedExpertConfig::gated("shared_mlp", width)
    });
    Ok(MoeConfig {
        router: "router.layer",
        tensors: ExpertTensors::InOne(["input_linear.weight", "output_linear.weight"]),
        shared,
        ..read(fields, 8, 2, config.feed_forward.intermediate_size)?
    })
}

/// Hunyuan's mixture: experts by a softmax, and a shared expert.
pub(super) fn hunyuan_v1_moe(fields: &Fields) -> Result<DecoderConfig> {
    refuse(fields, "use_cla")?;
    let config = super::qwen::hunyuan_v1_dense(fields)?;
    let fields = &fields
        .without("num_experts_per_tok")
        .with_default("num_experts_per_tok", same_everywhere(fields, "moe_topk", 1)?.into())
        .without("num_experts")
        .with_default("num_experts", same_everywhere(fields, "num_experts", 1)?.into());
    if same_everywhere(fields, "num_shared_expert", 1)? != 1 {
        return Err(fields.error("num_shared_expert", "must be 1 in this family"));
    }
    let width = config.feed_forward.intermediate_size;
    let experts = MoeConfig {
        router: "gate.wg",
        shared: Some(SharedExpertConfig::gated("shared_mlp", width)),
        ..read(fields, 1, 1, width)?
    };
    Ok(sparse(config, experts, |_| true))
}

/// Reads a count that may be a list over layers, but must be the same in all of them.
fn same_everywhere(fields: &Fields, key: &str, usual: usize) -> Result<usize> {
    let Ok(list) = fields.numbers(key) else { return Ok(fields.optional_size(key)?.unwrap_or(usual)) };
    match list.as_slice() {
        [] => Ok(usual),
        [first, rest @ ..] if *first >= 1.0 && rest.iter().all(|it| (it - first).abs() < 0.5) => {
            Ok(*first as usize)
        }
        _ => Err(fields.error(key, "must be the same number, at least 1, for all layers")),
    }
}

/// Reads the usual kind of experts, of this width. `usual` and `per_token` are the default numbers of all experts and of those per row.
pub(super) fn read(fields: &Fields, usual: usize, per_token: usize, width: usize) -> Result<MoeConfig> {
    let mut count = None;
    for key in ["num_local_experts", "num_experts", "n_routed_experts"] {
        count = count.or(fields.optional_size(key)?);
    }
    let per_token = fields.optional_size("num_experts_per_tok")?.unwrap_or(per_token);
    let activation = fields.optional_text("hidden_act")?.map_or(Some(Activation::Silu), Activation::named);
    Ok(MoeConfig {
        activation: ExpertActivation::Gated(activation.unwrap_or(Activation::Silu)),
        ..MoeConfig::gated(count.unwrap_or(usual), per_token, width)
    })
}

/// Adds experts to every `decoder_sparse_step`-th layer that is not in `mlp_only_layers`.
pub(super) fn sparse_by_step(
    fields: &Fields,
    config: DecoderConfig,
    experts: MoeConfig,
) -> Result<DecoderConfig> {
    let step = fields.optional_size("decoder_sparse_step")?.unwrap_or(1);
    let dense = fields.numbers("mlp_only_layers")?;
    Ok(sparse(config, experts, |layer| (layer + 1).is_multiple_of(step) && !dense.contains(&(layer as f64))))
}

/// Adds `experts` to the layers for which `is_sparse` returns true.
pub(super) fn sparse(
    mut config: DecoderConfig,
    experts: MoeConfig,
    is_sparse: impl Fn(usize) -> bool,
) -> DecoderConfig {
    for (index, layer) in config.layers.iter_mut().enumerate() {
        layer.is_moe = is_sparse(index);
    }
    config.experts = Some(experts);
    config
}
