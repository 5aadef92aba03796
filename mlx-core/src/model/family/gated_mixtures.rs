//! Mixtures of experts with a gate on the output of attention.

use super::base::{self, Defaults, LLAMA, flag, positive, refuse};
use super::{layers, mixtures, routed};
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::{OutputGate, QkNormScope};
use crate::model::config::{BlockConfig, DecoderConfig};
use crate::model::moe::{CorrectionBias, MoeConfig, RoutingConfig, ScoringFunc, SharedExpertConfig};

/// AFMoE (Trinity): three of four layers have a window. The fourth attends to everything and has no rope.
pub(super) fn afmoe(fields: &Fields) -> Result<DecoderConfig> {
    refuse(fields, "attention_bias")?;
    routed::expect(fields, "score_func", "sigmoid")?;
    if fields.optional_size("n_group")?.is_some_and(|groups| groups > 1) {
        return Err(fields.error("n_group", "is above 1; groups of experts are not supported in this family"));
    }
    let defaults = Defaults {
        head_dim: Some(128),
        max_position_embeddings: 16_384,
        eps: ("rms_norm_eps", 1e-5),
        ..LLAMA
    };
    let mut config = base::read(fields, &defaults)?;
    config.block = BlockConfig {
        post_attention_norm: Some("post_attention_layernorm"),
        pre_feedforward_norm: Some("pre_mlp_layernorm"),
        post_feedforward_norm: Some("post_mlp_layernorm"),
        ..BlockConfig::LLAMA
    };
    base::normalize_heads(&mut config, QkNormScope::Head);
    config.attention.output_gate = Some(OutputGate::Apart);
    config.embedding_scale =
        flag(fields, "mup_enabled", false)?.then(|| (config.hidden_size as f64).sqrt() as f32);
    let every = fields.optional_size("global_attn_every_n_layers")?.unwrap_or(4);
    let sliding = layers::kinds(fields, config.layers.len(), |layer| !(layer + 1).is_multiple_of(every))?;
    layers::set_window(fields, &mut config, &sliding, layers::window(fields, Some(1024))?)?;
    for (layer, sliding) in config.layers.iter_mut().zip(sliding) {
        layer.rope = layer.rope.take().filter(|_| sliding);
    }
    let width = fields.optional_size("moe_intermediate_size")?.unwrap_or(1408);
    let shared = fields.optional_count("num_shared_experts")?.unwrap_or(2);
    let experts = MoeConfig {
        routing: RoutingConfig {
            scoring_func: ScoringFunc::Sigmoid,
            correction_bias: Some(CorrectionBias { name: "expert_bias", as_found: false }),
            routed_scaling_factor: positive(fields, "route_scale", 1.0)? as f32,
            ..RoutingConfig::softmax(flag(fields, "route_norm", true)?)
        },
        shared: (shared > 0).then(|| SharedExpertConfig::gated("shared_experts", shared * width)),
        router: "router.gate",
        ..mixtures::read(fields, 64, 6, width)?
    };
    let dense = fields.optional_count("num_dense_layers")?.unwrap_or(1);
    Ok(mixtures::sparse(config, experts, |layer| layer >= dense))
}
