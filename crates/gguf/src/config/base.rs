//! The keys of most families.

use serde_json::json;

use super::keys::{Config, Floats, set};
use super::rope;
use crate::error::Result;
use crate::model::Model;

/// Returns a config like llama's, with norms by root mean square.
pub(super) fn read(model: &Model, floats: Floats, class: &str, model_type: &str) -> Result<Config> {
    let mut config = without_rope(model, class, model_type)?;
    rope::write(model, floats, &mut config)?;
    Ok(config)
}

/// Like [`read`], without the keys of rope.
pub(super) fn without_rope(model: &Model, class: &str, model_type: &str) -> Result<Config> {
    let mut config = with_heads(model, class, model_type)?;
    set(
        &mut config,
        json!({
            "head_dim": model.head_dim()?,
            "rms_norm_eps": epsilon(model, "attention.layer_norm_rms_epsilon")?,
            "hidden_act": "silu",
        }),
    );
    Ok(config)
}

/// Returns the sizes of a decoder with attention.
pub(super) fn with_heads(model: &Model, class: &str, model_type: &str) -> Result<Config> {
    let mut config = sizes(model, class, model_type)?;
    let (heads, kv_heads) = (model.heads()?, model.kv_heads()?);
    set(&mut config, json!({"num_attention_heads": heads, "num_key_value_heads": kv_heads}));
    Ok(config)
}

/// Returns the sizes of any decoder, and its special tokens.
pub(super) fn sizes(model: &Model, class: &str, model_type: &str) -> Result<Config> {
    let mut config = Config::new();
    set(
        &mut config,
        json!({
            "architectures": [class],
            "model_type": model_type,
            "hidden_size": model.size("embedding_length")?,
            "num_hidden_layers": model.layers,
            "vocab_size": vocabulary(model)?,
            "tie_word_embeddings": !model.has("output.weight"),
        }),
    );
    if let Some(context) = model.positive_size("context_length")? {
        config.insert("max_position_embeddings".to_owned(), context.into());
    }
    if let Some(width) = model.largest("feed_forward_length")?.or(model.rows_of("ffn_up.weight")) {
        config.insert("intermediate_size".to_owned(), width.into());
    }
    let token = |name: &str| model.metadata.size(&format!("tokenizer.ggml.{name}_token_id"));
    // Some converters write -1 or the size of the vocabulary for an absent padding token.
    let rows = vocabulary(model)?;
    let padding = token("padding").ok().flatten().filter(|&id| id < rows);
    for (key, id) in
        [("bos_token_id", token("bos")?), ("eos_token_id", token("eos")?), ("pad_token_id", padding)]
    {
        if let Some(id) = id {
            config.insert(key.to_owned(), id.into());
        }
    }
    Ok(config)
}

/// Returns the number of rows of the embedding.
fn vocabulary(model: &Model) -> Result<usize> {
    let name = "token_embd.weight";
    let index = model.find(name).ok_or_else(|| model.tensor_error(name, "is missing"))?;
    match *model.tensors[index].shape {
        [rows, _] => Ok(rows),
        ref other => Err(model.tensor_error(name, format!("has shape {other:?}; it must be a matrix"))),
    }
}

/// Returns a required number above 0.
pub(super) fn epsilon(model: &Model, name: &str) -> Result<f64> {
    model
        .number(name)?
        .filter(|&epsilon| epsilon > 0.0)
        .ok_or_else(|| model.error(name, "is missing or 0; it must be above 0"))
}

/// Returns the part of a head that rope rotates.
pub(super) fn rotated(model: &Model) -> Result<f64> {
    let head_dim = model.head_dim()?;
    Ok(match model.optional_size("rope.dimension_count")? {
        Some(rotated) if rotated > 0 && rotated < head_dim => rotated as f64 / head_dim as f64,
        _ => 1.0,
    })
}

/// Checks that rope rotates whole heads.
pub(super) fn expect_whole_heads(model: &Model) -> Result<()> {
    if rotated(model)? < 1.0 {
        let message = "is below the size of a head; this family rotates whole heads";
        return Err(model.error("rope.dimension_count", message));
    }
    Ok(())
}

/// Returns the sliding window. A window of 0 counts as none.
pub(super) fn window(model: &Model) -> Result<Option<usize>> {
    model.positive_size("attention.sliding_window")
}

/// Returns the types of layers: with a sliding window, or without one.
pub(super) fn layer_types(sliding: &[bool]) -> Vec<&'static str> {
    let name = |&slides: &bool| if slides { "sliding_attention" } else { "full_attention" };
    sliding.iter().map(name).collect()
}

/// Returns true if queries have biases in some layer.
pub(super) fn has_biases(model: &Model) -> bool {
    model.any_has("attn_q.bias") || model.any_has("attn_qkv.bias")
}
