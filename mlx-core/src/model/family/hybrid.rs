//! Families with a state of constant size in most layers.

use super::base::{self, Defaults, LLAMA, flag};
use super::{layers, mixtures};
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::{OutputGate, QkNormScope};
use crate::model::config::DecoderConfig;
use crate::model::gated_delta::{GatedDeltaConfig, GatedDeltaProjections};
use crate::model::mixer::MixerKind;
use crate::model::moe::{CorrectionBias, ExpertTensors, MoeConfig, RoutingConfig, ScoringFunc};
use crate::model::norm::NormKind;
use crate::model::rope::MropeSection;
use crate::model::short_conv::ShortConvConfig;
use crate::model::tensors::TensorNames;

/// The name of a layer with a short convolution in config.json.
const CONV: &str = "conv";
/// The name of a gated delta layer in config.json.
const LINEAR: &str = "linear_attention";

const QWEN3_NEXT: Defaults = Defaults {
    num_kv_heads: Some(2),
    head_dim: Some(256),
    max_position_embeddings: 32_768,
    norm: NormKind::RmsPlusOne,
    partial_rotary_factor: Some(0.25),
    ..LLAMA
};

const QWEN3_5: Defaults = Defaults {
    num_kv_heads: Some(4),
    mrope_section: Some(MropeSection::Interleaved([11, 11, 10])),
    ..QWEN3_NEXT
};

/// LFM2: short convolutions, with attention in a few layers.
pub(super) fn lfm2(fields: &Fields) -> Result<DecoderConfig> {
    let given = fields.optional_size("block_ff_dim")?.or(fields.optional_size("intermediate_size")?);
    let mut width = given.unwrap_or(12_288);
    if flag(fields, "block_auto_adjust_ff_dim", true)? {
        let multiple = fields.optional_size("block_multiple_of")?.unwrap_or(256);
        let factor = base::positive(fields, "block_ffn_dim_multiplier", 1.0)?;
        width = ((2 * width / 3) as f64 * factor) as usize;
        width = width.max(1).next_multiple_of(multiple);
    }
    short_convs(&fields.without("intermediate_size").with_default("intermediate_size", width.into()))
}

/// LFM2 with experts in all layers except the first ones. The experts are chosen by sigmoids with a correction bias.
pub(super) fn lfm2_moe(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &fields.with_default("intermediate_size", 7168.into());
    let config = short_convs(fields)?;
    let corrected = flag(fields, "use_expert_bias", true)?;
    let routing = RoutingConfig {
        scoring_func: ScoringFunc::Sigmoid,
        correction_bias: corrected.then_some(CorrectionBias { name: "expert_bias", as_found: false }),
        routed_scaling_factor: base::positive(fields, "routed_scaling_factor", 1.0)? as f32,
        ..RoutingConfig::softmax(flag(fields, "norm_topk_prob", true)?)
    };
    let width = fields.optional_size("moe_intermediate_size")?.unwrap_or(1792);
    let experts = MoeConfig {
        routing,
        tensors: ExpertTensors::Each(["w1", "w3", "w2"]),
        ..mixtures::read(fields, 32, 4, width)?
    };
    let dense = fields.optional_number("num_dense_layers")?.unwrap_or(2.0);
    Ok(mixtures::sparse(config, experts, |layer| layer as f64 >= dense))
}

/// Reads the common part of both.
fn short_convs(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &match fields.optional_flag("tie_embedding")? {
        Some(tied) => fields.without("tie_word_embeddings").with_default("tie_word_embeddings", tied.into()),
        None => fields.clone(),
    };
    let defaults = Defaults {
        num_kv_heads: Some(8),
        max_position_embeddings: 128_000,
        eps: ("norm_eps", 1e-5),
        rope_theta: 1e6,
        ..LLAMA
    };
    let mut config = base::read(fields, &defaults)?;
    base::normalize_heads(&mut config, QkNormScope::Head);
    let attends = fields.numbers("full_attn_idxs")?;
    let is_conv = |layer: usize| fields.has("full_attn_idxs") && !attends.contains(&(layer as f64));
    let kinds = layers::of_kind(fields, config.layers.len(), CONV, is_conv)?;
    let taps = fields.optional_size("conv_L_cache")?.unwrap_or(3);
    if taps < 2 {
        return Err(fields.error("conv_L_cache", "is 1; it must be at least 2"));
    }
    let (channels, bias) = (config.hidden_size, flag(fields, "conv_bias", false)?);
    let conv = ShortConvConfig { channels, taps, bias };
    mix(&mut config, &kinds, MixerKind::ShortConv(conv));
    config.tensors = TensorNames {
        renamed: &[
            (".mlp.", ".feed_forward."),
            ("feed_forward.gate_proj", "feed_forward.w1"),
            ("feed_forward.up_proj", "feed_forward.w3"),
            ("feed_forward.down_proj", "feed_forward.w2"),
            ("input_layernorm", "operator_norm"),
            ("post_attention_layernorm", "ffn_norm"),
            ("model.norm", "model.embedding_norm"),
            ("self_attn.o_proj", "self_attn.out_proj"),
            ("self_attn.q_norm", "self_attn.q_layernorm"),
            ("self_attn.k_norm", "self_attn.k_layernorm"),
        ],
        nested: false,
    };
    Ok(config)
}

/// Qwen 3.5, and the text of its multimodal models: three of four layers use the gated delta rule.
pub(super) fn qwen3_5(fields: &Fields) -> Result<DecoderConfig> {
    let text = base::text_section_or_all(fields)?;
    let mut config = gated_delta(&text, &QWEN3_5, GatedDeltaProjections::Apart)?;
    config.tensors.nested = true;
    Ok(config)
}

/// Bonsai 2: Qwen 3.5 with quantized matrices whose inputs are rotated.
pub(super) fn bonsai(fields: &Fields) -> Result<DecoderConfig> {
    for (key, supported) in [("base_model_type", "qwen3_5"), ("gdn_activation_layout", "grouped")] {
        if let Some(value) = fields.optional_text(key)?.filter(|value| *value != supported) {
            return Err(fields.error(key, format_args!("is {value:?}; supported is {supported:?}")));
        }
    }
    match fields.optional_size("schema_version")? {
        Some(2) => qwen3_5(fields),
        other => {
            let version = other.map_or_else(|| "missing".to_owned(), |version| format!("{version}"));
            Err(fields.error("schema_version", format_args!("is {version}; supported is 2")))
        }
    }
}

/// Qwen 3.5 with experts, and with a gated expert that every row goes through.
pub(super) fn qwen3_5_moe(fields: &Fields) -> Result<DecoderConfig> {
    let text = base::text_section_or_all(fields)?.with_default("intermediate_size", 5632.into());
    let defaults = Defaults { num_kv_heads: Some(2), ..QWEN3_5 };
    let mut config = gated_delta(&text, &defaults, GatedDeltaProjections::Apart)?;
    config.tensors.nested = true;
    let width = text.optional_size("moe_intermediate_size")?.unwrap_or(512);
    let experts = MoeConfig {
        shared: Some(mixtures::gated_shared(&text, 512)?),
        ..mixtures::read(&text, 256, 8, width)?
    };
    mixtures::sparse_by_step(&text, config, experts)
}

/// Qwen 3 Next: its projections are laid out by key head.
pub(super) fn qwen3_next(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &fields.with_default("intermediate_size", 5632.into());
    let config = gated_delta(fields, &QWEN3_NEXT, GatedDeltaProjections::ByKeyHead)?;
    let width = fields.optional_size("moe_intermediate_size")?.unwrap_or(512);
    let experts = MoeConfig {
        routing: RoutingConfig::softmax(flag(fields, "norm_topk_prob", true)?),
        shared: Some(mixtures::gated_shared(fields, 512)?),
        ..mixtures::read(fields, 512, 10, width)?
    };
    mixtures::sparse_by_step(fields, config, experts)
}

/// Reads the common part of Qwen 3.5 and Qwen 3 Next: gated delta layers, and attention with output gates in the other layers.
fn gated_delta(
    fields: &Fields,
    defaults: &Defaults,
    projections: GatedDeltaProjections,
) -> Result<DecoderConfig> {
    let mut config = base::with_biases(fields, defaults)?;
    config.feed_forward.bias = false;
    config.attention.output_gate = Some(OutputGate::BesideQueries);
    base::normalize_heads(&mut config, QkNormScope::Head);
    let interval = fields.optional_size("full_attention_interval")?.unwrap_or(4);
    let is_linear = |layer: usize| !(layer + 1).is_multiple_of(interval);
    let kinds = layers::of_kind(fields, config.layers.len(), LINEAR, is_linear)?;
    let size = |key: &str, usual: usize| Ok::<_, crate::Error>(fields.optional_size(key)?.unwrap_or(usual));
    let delta = GatedDeltaConfig {
        num_key_heads: size("linear_num_key_heads", 16)?,
        num_value_heads: size("linear_num_value_heads", 32)?,
        key_head_dim: size("linear_key_head_dim", 128)?,
        value_head_dim: size("linear_value_head_dim", 128)?,
        taps: size("linear_conv_kernel_dim", 4)?,
        projections,
    };
    check(fields, &delta)?;
    mix(&mut config, &kinds, MixerKind::GatedDelta(delta));
    Ok(config)
}

/// Checks relations between keys that a gated delta layer needs.
fn check(fields: &Fields, delta: &GatedDeltaConfig) -> Result<()> {
    if !delta.num_value_heads.is_multiple_of(delta.num_key_heads) {
        let message = format_args!("is {}; it must divide linear_num_value_heads", delta.num_key_heads);
        return Err(fields.error("linear_num_key_heads", message));
    }
    if delta.taps < 2 {
        return Err(fields.error("linear_conv_kernel_dim", "is 1; it must be at least 2"));
    }
    // Widths are products of two keys. Together they must fit an i32, the type of array dimensions.
    let keys = delta.num_key_heads.saturating_mul(delta.key_head_dim);
    let values =
        delta.num_value_heads.saturating_mul(delta.value_head_dim.saturating_mul(delta.key_head_dim));
    if keys.saturating_add(values).saturating_mul(4) > i32::MAX as usize {
        return Err(fields.error("linear_num_value_heads", "times the sizes of a head is too large"));
    }
    Ok(())
}

/// Sets the mixer of the layers that are true in `kinds`. They get no rope, because the state reflects the order of rows.
pub(super) fn mix(config: &mut DecoderConfig, kinds: &[bool], mixer: MixerKind) {
    for (layer, _) in config.layers.iter_mut().zip(kinds).filter(|(_, mixes)| **mixes) {
        (layer.mixer, layer.rope) = (mixer, None);
    }
}
