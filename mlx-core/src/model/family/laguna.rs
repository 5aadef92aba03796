//! Poolside's Laguna: gates on the output of heads, a separate rope and number of heads by layer, and experts; and Mellum, which has its ropes.

use serde_json::{Value, json};

use super::base::{self, Defaults, LLAMA, flag, positive, refuse};
use super::layers::{self, FULL, SLIDING};
use super::mixtures::{read, sparse};
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::{HeadGateConfig, OutputGate, QkNormScope};
use crate::model::config::DecoderConfig;
use crate::model::moe::{CorrectionBias, MoeConfig, RoutingConfig, ScoringFunc, SharedExpertConfig};
use crate::model::rope::RopeConfig;

const LAGUNA: Defaults = Defaults {
    num_kv_heads: Some(8),
    head_dim: Some(128),
    max_position_embeddings: 131_072,
    partial_rotary_factor: Some(1.0),
    ..LLAMA
};

/// Laguna.
pub(super) fn laguna(fields: &Fields) -> Result<DecoderConfig> {
    refuse(fields, "moe_apply_router_weight_on_input")?;
    let usual = json!({
        FULL: {"rope_type": "default", "rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
    });
    let fields = &base::with_default_rope(fields, usual).with_default("intermediate_size", 8192.into());
    let mut config = base::with_biases(fields, &LAGUNA)?;
    config.feed_forward.bias = false;
    config.attention.output_gate =
        Some(OutputGate::Heads(HeadGateConfig { per_head: is_per_head(fields)?, softplus: true }));
    base::normalize_heads(&mut config, QkNormScope::Head);
    by_kind(fields, &mut config, &LAGUNA, Some(512))?;
    set_heads(fields, &mut config)?;
    let width = fields.optional_size("moe_intermediate_size")?.unwrap_or(512);
    let shared = fields.optional_size("shared_expert_intermediate_size")?.unwrap_or(512);
    let cap = fields.optional_number("moe_router_logit_softcapping")?.filter(|&cap| cap > 0.0);
    let experts = MoeConfig {
        routing: RoutingConfig {
            scoring_func: ScoringFunc::Sigmoid,
            correction_bias: Some(CorrectionBias { name: "gate.e_score_correction_bias", as_found: false }),
            routed_scaling_factor: positive(fields, "moe_routed_scaling_factor", 1.0)? as f32,
            logit_softcap: cap.map(|cap| cap as f32),
            ..RoutingConfig::softmax(true)
        },
        shared: Some(SharedExpertConfig::gated("shared_expert", shared)),
        ..read(fields, 256, 8, width)?
    };
    let kinds = layers::sparse_kinds(fields, config.layers.len(), |layer| layer > 0)?;
    Ok(sparse(config, experts, |layer| kinds[layer]))
}

/// Mellum: Qwen 3 with experts, and a separate rope for layers with a window.
pub(super) fn mellum(fields: &Fields) -> Result<DecoderConfig> {
    let usual = json!({
        FULL: {"rope_type": "default", "rope_theta": 500_000.0},
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    });
    let fields = &base::with_default_rope(fields, usual).with_default("intermediate_size", 7168.into());
    let defaults = Defaults { num_kv_heads: Some(4), ..LAGUNA };
    let mut config = base::with_biases(fields, &defaults)?;
    config.feed_forward.bias = false;
    base::normalize_heads(&mut config, QkNormScope::Head);
    by_kind(fields, &mut config, &defaults, Some(1024))?;
    config.draft_layers = super::routed::draft_layers(fields)?;
    let width = fields.optional_size("moe_intermediate_size")?.unwrap_or(896);
    let routing = RoutingConfig::softmax(flag(fields, "norm_topk_prob", true)?);
    let experts = MoeConfig { routing, ..read(fields, 64, 8, width)? };
    let kinds = layers::sparse_kinds(fields, config.layers.len(), |_| true)?;
    Ok(sparse(config, experts, |layer| kinds[layer]))
}

/// Sets windows and ropes by `layer_types`. Without it, no layer has a window.
fn by_kind(
    fields: &Fields,
    config: &mut DecoderConfig,
    defaults: &Defaults,
    window: Option<usize>,
) -> Result<()> {
    let sliding = layers::kinds(fields, config.layers.len(), |_| false)?;
    layers::set_window(fields, config, &sliding, layers::window(fields, window)?)?;
    let (size, rope) = (config.attention.head_dim, base::rope_defaults(fields, defaults)?);
    let global = RopeConfig::read_for(fields, FULL, size, rope)?;
    let local = RopeConfig::read_for(fields, SLIDING, size, rope)?;
    for (layer, sliding) in config.layers.iter_mut().zip(sliding) {
        layer.rope = Some(if sliding { local.clone() } else { global.clone() });
    }
    Ok(())
}

/// Reads `gating`: `true` and "per-head" mean one gate per head, "per-element" one per dimension.
fn is_per_head(fields: &Fields) -> Result<bool> {
    match fields.get("gating") {
        None | Some(Value::Bool(true)) => Ok(true),
        Some(Value::String(text)) if text == "per-head" => Ok(true),
        Some(Value::String(text)) if text == "per-element" => Ok(false),
        Some(other) => {
            let message = format_args!("is {other}; supported are true, \"per-head\" and \"per-element\"");
            Err(fields.error("gating", message))
        }
    }
}

/// Sets the number of query heads of each layer.
fn set_heads(fields: &Fields, config: &mut DecoderConfig) -> Result<()> {
    let key = "num_attention_heads_per_layer";
    let (counts, layers) = (fields.numbers(key)?, config.layers.len());
    if counts.is_empty() {
        return Ok(());
    }
    if counts.len() != layers {
        return Err(
            fields.error(key, format_args!("has {} entries; there are {layers} layers", counts.len()))
        );
    }
    for (layer, count) in config.layers.iter_mut().zip(counts) {
        if count.fract() != 0.0 || !(1.0..65_536.0).contains(&count) {
            return Err(fields.error(key, format_args!("has {count}; it must be a number of heads")));
        }
        let mut attention = config.attention.clone();
        attention.num_heads = count as usize;
        layer.attention = (attention != config.attention).then(|| Box::new(attention));
    }
    Ok(())
}
