//! Ling 3: Kimi Delta Attention in most layers, latent attention with gates on its heads in the others, and experts.

use super::base::{flag, refuse};
use super::hybrid::mix;
use super::kimi_linear::{check, renamed};
use super::latent::{self, DEEPSEEK, LatentDefaults};
use super::{layers, routed};
use crate::config::Fields;
use crate::error::Result;
use crate::model::config::DecoderConfig;
use crate::model::kimi_delta::KimiDeltaConfig;
use crate::model::mixer::MixerKind;
use crate::model::moe::CorrectionBias;
use crate::model::tensors::TensorNames;

/// Ling 3.
pub(super) fn bailing_hybrid(fields: &Fields) -> Result<DecoderConfig> {
    if fields.has("group_norm_size") {
        let message = "is set, as in Ling 2.5; its lightning attention is not supported";
        return Err(fields.error("group_norm_size", message));
    }
    refuse(fields, "use_bias")?;
    refuse(fields, "use_qkv_bias")?;
    let fields = &renamed(fields)
        .with_default("rope_theta", 6e6.into())
        .with_default("n_group", 8.into())
        .with_default("topk_group", 4.into())
        .with_default("routed_scaling_factor", 2.5.into())
        .with_default("intermediate_size", 6144.into())
        .with_default("n_shared_experts", fields.optional_count("num_shared_experts")?.unwrap_or(1).into());
    let inner = if fields.has("q_lora_rank") {
        fields.clone()
    } else {
        fields.without("q_lora_rank").with_default("q_lora_rank", serde_json::Value::Null)
    };
    let usual = LatentDefaults { max_position_embeddings: 262_144, ..DEEPSEEK };
    let mut config = latent::decoder(&inner.without("rope_interleave"), &usual)?;
    for layer in &mut config.layers {
        if let MixerKind::Latent(latent) = &mut layer.mixer {
            latent.head_gate = true;
        }
    }
    let group = fields.optional_size("layer_group_size")?.unwrap_or(6);
    let is_linear = layers::of_kind(fields, config.layers.len(), "linear_attention", |layer| {
        !(layer + 1).is_multiple_of(group)
    })?;
    mix(&mut config, &is_linear, MixerKind::KimiDelta(delta(fields)?));
    config.tensors = TensorNames {
        renamed: &[("model.embed_tokens", "model.word_embeddings"), ("self_attn.", "attention.")],
        nested: false,
    };
    let usual = routed::RoutingDefaults {
        num_experts: 512,
        num_experts_per_tok: 8,
        moe_intermediate_size: 768,
        n_shared_experts: 1,
        first_k_dense_replace: 2,
        norm_topk_prob: true,
    };
    let mut config = routed::corrected(fields, config, &usual)?;
    if let Some(experts) = &mut config.experts {
        experts.routing.correction_bias = Some(CorrectionBias { name: "gate.expert_bias", as_found: false });
        let key = "moe_shared_expert_intermediate_size";
        if let Some(width) = fields.optional_size(key)?.filter(|&width| width != experts.intermediate_size) {
            let message = format_args!("is {width}; it must equal moe_intermediate_size");
            return Err(fields.error(key, message));
        }
    }
    Ok(config)
}

fn delta(fields: &Fields) -> Result<KimiDeltaConfig> {
    let bound = fields.optional_number("kda_lower_bound")?.unwrap_or(-5.0);
    if bound >= 0.0 {
        return Err(fields.error("kda_lower_bound", format_args!("is {bound}; it must be below 0")));
    }
    let delta = KimiDeltaConfig {
        num_heads: fields.size("num_attention_heads")?,
        head_dim: fields.optional_size("head_dim")?.unwrap_or(128),
        short_conv_kernel_size: fields.optional_size("short_conv_kernel_size")?.unwrap_or(4),
        low_rank: false,
        lower_bound: flag(fields, "kda_safe_gate", true)?.then_some(bound as f32),
    };
    check(fields, &delta)?;
    Ok(delta)
}
