//! Gemma 3n: several residual streams, per-layer embeddings, borrowed keys and values, and sparse gates in the first layers.

use super::base::{self, Defaults, LLAMA, flag, nullable, refuse};
use super::gemma::{BLOCK, ropes};
use super::gemma4::{borrow, per_layer_input};
use super::layers;
use crate::config::Fields;
use crate::error::Result;
use crate::model::altup::AltUpConfig;
use crate::model::attention::QkNormScope;
use crate::model::config::DecoderConfig;

const GEMMA3N: Defaults = Defaults {
    num_kv_heads: Some(2),
    head_dim: Some(256),
    max_position_embeddings: 32_768,
    activation: ("hidden_activation", "gelu_pytorch_tanh"),
    ..LLAMA
};

/// The text part of Gemma 3n.
pub(super) fn gemma3n(fields: &Fields) -> Result<DecoderConfig> {
    gemma3n_text(&base::text_section(fields)?)
}

/// Gemma 3n.
pub(super) fn gemma3n_text(fields: &Fields) -> Result<DecoderConfig> {
    refuse(fields, "use_bidirectional_attention")?;
    let widths = widths(fields)?;
    let first = widths.first().copied().unwrap_or(16_384);
    let fields =
        &with_defaults(fields).without("intermediate_size").with_default("intermediate_size", first.into());
    let mut config = base::with_biases(fields, &GEMMA3N)?;
    config.feed_forward.bias = false;
    config.block = BLOCK;
    config.tensors.nested = true;
    config.embedding_scale = Some((config.hidden_size as f64).sqrt() as f32);
    config.head.tie_word_embeddings = true;
    config.head.softcap = nullable(fields, "final_logit_softcapping", Some(30.0))?;
    config.attention.scale = 1.0;
    base::normalize_heads(&mut config, QkNormScope::Head);
    config.attention.value_norm = Some(config.norm);
    let count = config.layers.len();
    let sliding = layers::kinds(fields, count, |layer| !(layer + 1).is_multiple_of(5))?;
    layers::set_window(fields, &mut config, &sliding, layers::window(fields, Some(512))?)?;
    let (global, local) = ropes(fields, config.attention.head_dim, config.max_position_embeddings)?;
    for (layer, sliding) in config.layers.iter_mut().zip(&sliding) {
        layer.rope = Some(if *sliding { local.clone() } else { global.clone() });
    }
    borrow(fields, &mut config, &sliding)?;
    set_widths(fields, &mut config, &widths)?;
    cut_gates(fields, &mut config)?;
    config.per_layer_input = per_layer_input(fields, &config, false)?;
    if config.per_layer_input.is_none() {
        return Err(fields.error("hidden_size_per_layer_input", "must be above 0 in this family"));
    }
    config.altup = Some(altup(fields, &config)?);
    Ok(config)
}

/// Adds the defaults that differ from those of Gemma 4.
fn with_defaults(fields: &Fields) -> Fields {
    fields
        .with_default("vocab_size", 262_400.into())
        .with_default("hidden_size", 2048.into())
        .with_default("num_hidden_layers", 35.into())
        .with_default("num_attention_heads", 8.into())
        .with_default("num_kv_shared_layers", 15.into())
}

/// Reads `intermediate_size`, which is one number or a list over layers.
fn widths(fields: &Fields) -> Result<Vec<usize>> {
    let key = "intermediate_size";
    let Ok(list) = fields.numbers(key) else { return Ok(fields.optional_size(key)?.into_iter().collect()) };
    let width =
        |number: &f64| (number.fract() == 0.0 && (1.0..1e9).contains(number)).then_some(*number as usize);
    let widths: Option<Vec<usize>> = list.iter().map(width).collect();
    widths.ok_or_else(|| fields.error(key, "must be a number above 0, or a list of such numbers"))
}

/// Sets the widths of the dense blocks, if they differ.
fn set_widths(fields: &Fields, config: &mut DecoderConfig, widths: &[usize]) -> Result<()> {
    if widths.len() < 2 {
        return Ok(());
    }
    expect_one_each(fields, "intermediate_size", widths.len(), config)?;
    for (layer, &width) in config.layers.iter_mut().zip(widths) {
        layer.intermediate_size = Some(width);
    }
    Ok(())
}

/// Reads `activation_sparsity_pattern`. By default, the first ten layers of a larger model are sparse.
fn cut_gates(fields: &Fields, config: &mut DecoderConfig) -> Result<()> {
    let key = "activation_sparsity_pattern";
    let count = config.layers.len();
    let usual = |layer: usize| if count > 10 && layer < 10 { 0.95 } else { 0.0 };
    let pattern = if fields.has(key) { fields.numbers(key)? } else { (0..count).map(usual).collect() };
    expect_one_each(fields, key, pattern.len(), config)?;
    for (layer, share) in config.layers.iter_mut().zip(pattern) {
        if !(0.0..1.0).contains(&share) {
            return Err(fields.error(key, format_args!("has {share}; it must be at least 0 and below 1")));
        }
        layer.activation_sparsity = (share > 0.0).then_some(share as f32);
    }
    Ok(())
}

fn expect_one_each(fields: &Fields, key: &str, given: usize, config: &DecoderConfig) -> Result<()> {
    let count = config.layers.len();
    if given != count {
        return Err(fields.error(key, format_args!("has {given} entries; there are {count} layers")));
    }
    Ok(())
}

fn altup(fields: &Fields, config: &DecoderConfig) -> Result<AltUpConfig> {
    let altup_num_inputs = fields.optional_size("altup_num_inputs")?.unwrap_or(4);
    if altup_num_inputs > 64 {
        let message = format_args!("is {altup_num_inputs}; at most 64 are supported");
        return Err(fields.error("altup_num_inputs", message));
    }
    let altup_active_idx = fields.optional_count("altup_active_idx")?.unwrap_or(0);
    if altup_active_idx >= altup_num_inputs {
        let message =
            format_args!("is {altup_active_idx}; it must be below altup_num_inputs, {altup_num_inputs}");
        return Err(fields.error("altup_active_idx", message));
    }
    Ok(AltUpConfig {
        altup_num_inputs,
        altup_active_idx,
        altup_correct_scale: flag(fields, "altup_correct_scale", true)?,
        laurel_rank: fields.optional_size("laurel_rank")?.unwrap_or(64),
        norm: config.norm,
    })
}
