//! Families as data: each is one function that reads config.json into a [`DecoderConfig`].

use super::attention::AttentionConfig;
use super::decoder::DecoderConfig;
use super::feed_forward::FeedForwardConfig;
use super::rope::RopeConfig;
use crate::config::Fields;
use crate::error::Result;

/// The decoder that `config.json` describes, and the name of its family.
pub fn read(fields: &Fields) -> Result<(String, DecoderConfig)> {
    let family =
        fields.optional_text("model_type")?.ok_or_else(|| fields.error("model_type", "is missing"))?;
    for key in ["quantization", "quantization_config"] {
        if fields.has(key) {
            return Err(fields.error(key, "is set; quantised weights are not supported yet"));
        }
    }
    let config = match family {
        "llama" => llama(fields),
        other => {
            let message = format_args!("{other:?} is not supported; supported is llama");
            return Err(fields.error("model_type", message));
        }
    }?;
    check(fields, &config)?;
    Ok((family.to_owned(), config))
}

/// Llama 1, 2 and 3 (transformers' `LlamaConfig` is the reference for names and defaults).
fn llama(fields: &Fields) -> Result<DecoderConfig> {
    expect(fields, "hidden_act", "silu")?;
    if fields.optional_number("partial_rotary_factor")?.is_some_and(|factor| factor < 1.0) {
        return Err(fields.error("partial_rotary_factor", "below 1 is not supported for llama"));
    }
    for (index, kind) in fields.texts("layer_types")?.iter().enumerate() {
        if kind != "full_attention" {
            let message = format_args!("has {kind:?} at {index}; llama supports full_attention only");
            return Err(fields.error("layer_types", message));
        }
    }
    let hidden = fields.size("hidden_size")?;
    let query_heads = fields.size("num_attention_heads")?;
    let head_size = fields.optional_size("head_dim")?.unwrap_or(hidden / query_heads);
    let attention_bias = fields.optional_flag("attention_bias")?.unwrap_or(false);
    Ok(DecoderConfig {
        vocabulary: fields.size("vocab_size")?,
        context: fields.optional_size("max_position_embeddings")?.unwrap_or(2048),
        layers: fields.size("num_hidden_layers")?,
        hidden,
        norm_epsilon: fields.optional_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        attention: AttentionConfig {
            query_heads,
            key_heads: fields.optional_size("num_key_value_heads")?.unwrap_or(query_heads),
            head_size,
            rope: RopeConfig::read(fields, head_size)?,
            qkv_bias: attention_bias,
            output_bias: attention_bias,
        },
        feed_forward: FeedForwardConfig {
            inner: fields.size("intermediate_size")?,
            bias: fields.optional_flag("mlp_bias")?.unwrap_or(false),
        },
        tied_head: fields.optional_flag("tie_word_embeddings")?.unwrap_or(false),
    })
}

/// Relations between keys that no family may break.
fn check(fields: &Fields, config: &DecoderConfig) -> Result<()> {
    let AttentionConfig { query_heads, key_heads, head_size, .. } = config.attention;
    if head_size == 0 {
        return Err(fields.error("num_attention_heads", "is above hidden_size and head_dim is not given"));
    }
    if !query_heads.is_multiple_of(key_heads) {
        let message = format_args!("is {key_heads}; it must divide num_attention_heads");
        return Err(fields.error("num_key_value_heads", message));
    }
    // Widths are products of two keys; together they must still fit a device dimension.
    let heads = query_heads.saturating_add(key_heads.saturating_mul(2));
    if heads.saturating_mul(head_size) > i32::MAX as usize {
        return Err(fields.error("head_dim", "times the number of heads is too large"));
    }
    Ok(())
}

fn expect(fields: &Fields, key: &str, supported: &str) -> Result<()> {
    match fields.optional_text(key)? {
        Some(given) if given != supported => {
            Err(fields.error(key, format_args!("{given:?} is not supported; supported is {supported}")))
        }
        _ => Ok(()),
    }
}
