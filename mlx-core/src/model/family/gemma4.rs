//! Gemma 4. Layers without a window have heads of another shape. The last layers borrow keys and values. The small models have per-layer
//! embeddings, and one of the large models has experts in parallel with its dense blocks.

use serde_json::json;

use super::base::{self, Defaults, LLAMA, flag, nullable};
use super::gemma::BLOCK;
use super::layers::{self, FULL, SLIDING};
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::{AttentionConfig, QkNormScope};
use crate::model::config::{BlockConfig, DecoderConfig};
use crate::model::moe::{ExpertActivation, ExpertTensors, MoeConfig, RoutingConfig};
use crate::model::per_layer_input::PerLayerInputConfig;
use crate::model::rope::RopeConfig;

const GEMMA4: Defaults = Defaults {
    num_kv_heads: Some(4),
    head_dim: Some(256),
    max_position_embeddings: 131_072,
    activation: ("hidden_activation", "gelu_pytorch_tanh"),
    ..LLAMA
};

/// The text part of Gemma 4.
pub(super) fn gemma4(fields: &Fields) -> Result<DecoderConfig> {
    let text = base::text_section(fields)?;
    gemma4_text(&if let Some(vocabulary) = fields.optional_size("vocab_size")? {
        text.with_default("vocab_size", vocabulary.into())
    } else {
        text
    })
}

/// The text part of the model without a tower, which has no per-layer embeddings.
pub(super) fn gemma4_unified(fields: &Fields) -> Result<DecoderConfig> {
    let text = base::text_section(fields)?
        .with_default("hidden_size_per_layer_input", 0.into())
        .with_default("max_position_embeddings", 262_144.into())
        .with_default("sliding_window", 1024.into());
    let key = "use_bidirectional_attention";
    // `null` means that pictures are read causally, like text.
    gemma4_text(&if text.contains_key(key) { text } else { text.with_default(key, "vision".into()) })
}

/// Gemma 4.
pub(super) fn gemma4_text(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &with_defaults(fields);
    let two_way = fields.optional_text("use_bidirectional_attention")?;
    if let Some(seen) = two_way
        && seen != "vision"
    {
        let message = format_args!("is {seen:?}; bidirectional attention over text is not supported");
        return Err(fields.error("use_bidirectional_attention", message));
    }
    let mut config = base::with_biases(fields, &GEMMA4)?;
    config.feed_forward.bias = false;
    config.block = BlockConfig { layer_scalar: true, ..BLOCK };
    config.tensors.nested = true;
    config.embedding_scale = Some((config.hidden_size as f64).sqrt() as f32);
    config.head.softcap = nullable(fields, "final_logit_softcapping", None)?;
    config.attention.scale = 1.0;
    config.attention.two_way_pictures = two_way.is_some();
    base::normalize_heads(&mut config, QkNormScope::Head);
    config.attention.value_norm = Some(config.norm);
    let mut sliding = layers::kinds(fields, config.layers.len(), |layer| !(layer + 1).is_multiple_of(6))?;
    // The last layer has no window, regardless of config.json.
    if let Some(last) = sliding.last_mut() {
        *last = false;
    }
    layers::set_window(fields, &mut config, &sliding, layers::window(fields, Some(512))?)?;
    shape_layers(fields, &mut config, &sliding)?;
    borrow(fields, &mut config, &sliding)?;
    config.per_layer_input = per_layer_input(fields, &config, true)?;
    if flag(fields, "enable_moe_block", false)? {
        config.experts = Some(experts(fields, &config)?);
        config.layers.iter_mut().for_each(|layer| layer.is_moe = true);
    }
    Ok(config)
}

fn with_defaults(fields: &Fields) -> Fields {
    let rope = json!({
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    });
    fields
        .with_default("vocab_size", 262_144.into())
        .with_default("num_attention_heads", 8.into())
        .with_default("rope_parameters", rope)
}

/// Sets the heads and the rope of each layer.
fn shape_layers(fields: &Fields, config: &mut DecoderConfig, sliding: &[bool]) -> Result<()> {
    let full = full_attention(fields, &config.attention)?;
    let single = fields.section("per_layer_config")?;
    let rope = base::rope_defaults(fields, &GEMMA4)?;
    for (index, (layer, &sliding)) in config.layers.iter_mut().zip(sliding).enumerate() {
        let mut attention = if sliding { config.attention.clone() } else { full.clone() };
        if let Some(single) = &single {
            let usual = &config.attention;
            (attention.head_dim, attention.num_kv_heads) = (usual.head_dim, usual.num_kv_heads);
            if let Some(own) = single.section(&index.to_string())? {
                override_shape(&own, &mut attention)?;
            }
        }
        let kind = if sliding { SLIDING } else { FULL };
        layer.rope = Some(RopeConfig::read_for(fields, kind, attention.head_dim, rope)?);
        layer.attention = (attention != config.attention).then(|| Box::new(attention));
    }
    Ok(())
}

/// Returns the attention of layers without a window.
fn full_attention(fields: &Fields, usual: &AttentionConfig) -> Result<AttentionConfig> {
    let null = fields.is_null("global_head_dim");
    let head_dim =
        fields.optional_size("global_head_dim")?.unwrap_or(if null { usual.head_dim } else { 512 });
    let attention_k_eq_v = flag(fields, "attention_k_eq_v", false)?;
    let own = fields.optional_size("num_global_key_value_heads")?.filter(|_| attention_k_eq_v);
    let num_kv_heads = own.unwrap_or(usual.num_kv_heads);
    Ok(AttentionConfig { num_kv_heads, head_dim, attention_k_eq_v, ..usual.clone() })
}

/// Applies the section of one layer in `per_layer_config`.
fn override_shape(own: &Fields, attention: &mut AttentionConfig) -> Result<()> {
    for key in own.keys() {
        match key {
            "head_dim" => attention.head_dim = own.size(key)?,
            "num_key_value_heads" => attention.num_kv_heads = own.size(key)?,
            other => return Err(own.error(other, "is not supported for a single layer")),
        }
    }
    Ok(())
}

/// Makes the last `num_kv_shared_layers` layers use the keys and values of the last earlier layer of their type.
pub(super) fn borrow(fields: &Fields, config: &mut DecoderConfig, sliding: &[bool]) -> Result<()> {
    let (count, key) = (config.layers.len(), "num_kv_shared_layers");
    let first = count.saturating_sub(fields.optional_count(key)?.unwrap_or(0));
    let wide = flag(fields, "use_double_wide_mlp", false)?;
    for index in first..count {
        let source = (0..first).rfind(|&source| sliding[source] == sliding[index]);
        let fits =
            source.is_some_and(|source| config.layers[source].attention == config.layers[index].attention);
        if !fits {
            let message =
                format_args!("leaves layer {index} of {count} without a layer of its type to borrow from");
            return Err(fields.error(key, message));
        }
        config.layers[index].kv_source = source;
        config.layers[index].intermediate_size = wide.then_some(2 * config.feed_forward.intermediate_size);
    }
    Ok(())
}

/// Reads the per-layer embeddings. With `covers_all`, their table must have all tokens.
pub(super) fn per_layer_input(
    fields: &Fields,
    config: &DecoderConfig,
    covers_all: bool,
) -> Result<Option<PerLayerInputConfig>> {
    let usual = if fields.is_null("hidden_size_per_layer_input") { 0 } else { 256 };
    let hidden_size = fields.optional_count("hidden_size_per_layer_input")?.unwrap_or(usual);
    if hidden_size == 0 {
        return Ok(None);
    }
    let key = "vocab_size_per_layer_input";
    let vocab_size = fields.optional_size(key)?.unwrap_or(262_144);
    if covers_all && vocab_size < config.vocab_size {
        let message = format_args!("is {vocab_size}; it must not be below vocab_size, {}", config.vocab_size);
        return Err(fields.error(key, message));
    }
    let pad_token_id = fields.optional_count("pad_token_id")?.unwrap_or(0);
    let Some(pad_token_id) = u32::try_from(pad_token_id).ok().filter(|_| pad_token_id < vocab_size) else {
        let message = format_args!("is {pad_token_id}; there are {vocab_size} tokens");
        return Err(fields.error("pad_token_id", message));
    };
    let (activation, norm) = (config.feed_forward.activation, config.norm);
    Ok(Some(PerLayerInputConfig {
        hidden_size,
        vocab_size,
        has_other_tokens: vocab_size < config.vocab_size,
        activation,
        norm,
        pad_token_id,
    }))
}

fn experts(fields: &Fields, config: &DecoderConfig) -> Result<MoeConfig> {
    let [count, per_token, width] =
        ["num_experts", "top_k_experts", "moe_intermediate_size"].map(|key| fields.size(key));
    Ok(MoeConfig {
        routing: RoutingConfig { scaled: Some(config.norm), ..RoutingConfig::softmax(true) },
        beside_dense: true,
        activation: ExpertActivation::Gated(config.feed_forward.activation),
        router: "router.proj",
        tensors: ExpertTensors::InOne(["experts.gate_up_proj", "experts.down_proj"]),
        ..MoeConfig::gated(count?, per_token?, width?)
    })
}
