//! Gemma.

use serde_json::{Value, json};

use super::base::{layer_types, read, window, without_rope};
use super::keys::{Config, Floats, set};
use super::{experts, rope};
use crate::error::Result;
use crate::model::Model;

/// The activation of all Gemmas.
const ACTIVATION: &str = "gelu_pytorch_tanh";
/// The numbers of layers of the models of 27 billion parameters. Their scale of scores follows another rule.
const LAYERS_27B: [usize; 2] = [46, 62];
/// The number of layers of Gemma 3 with a billion parameters.
const LAYERS_1B: usize = 26;
/// The numbers of layers of Gemma 3 with 4, 12 and 27 billion parameters, and the factor of their rope in layers without a window.
const LONG_CONTEXT: [usize; 3] = [34, 48, 62];
const LONG_FACTOR: f64 = 8.0;
/// The theta of layers with a window in Gemma 3, if the file has none.
const LOCAL_THETA: f64 = 10_000.0;

/// Gemma 1.
pub(crate) fn gemma(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "GemmaForCausalLM", "gemma")?;
    set(&mut config, json!({"hidden_act": ACTIVATION, "hidden_activation": ACTIVATION}));
    Ok(config)
}

/// Gemma 2: every other layer has a window.
pub(crate) fn gemma2(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = newer(model, floats, "Gemma2ForCausalLM", "gemma2")?;
    set(
        &mut config,
        json!({
            "attn_logit_softcapping": model.number("attn_logit_softcapping")?.unwrap_or(50.0),
            "final_logit_softcapping": model.number("final_logit_softcapping")?.unwrap_or(30.0),
            "sliding_window": window(model)?.unwrap_or(4096),
            "layer_types": layer_types(&model.sliding(2)?),
        }),
    );
    Ok(config)
}

/// Gemma 3: five of six layers have a window and another theta.
pub(crate) fn gemma3(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = newer(model, floats, "Gemma3ForCausalLM", "gemma3_text")?;
    let slides = window(model)?;
    let types = if slides.is_some() { model.sliding(6)? } else { vec![false; model.layers] };
    let local = model.number("rope.freq_base_swa")?.unwrap_or(LOCAL_THETA);
    // Older files of Ollama have a cap that the model does not have, and lack the factor of the rope.
    let softcap = model.number("final_logit_softcapping")?.filter(|_| model.layers != LAYERS_1B);
    if LONG_CONTEXT.contains(&model.layers) && !config.contains_key("rope_scaling") {
        set(&mut config, json!({"rope_scaling": {"rope_type": "linear", "factor": LONG_FACTOR}}));
    }
    set(
        &mut config,
        json!({
            "final_logit_softcapping": softcap,
            "attn_logit_softcapping": null,
            "sliding_window": slides,
            "layer_types": layer_types(&types),
            "rope_local_base_freq": local,
        }),
    );
    if model.number("rope.freq_base")?.is_none() {
        config.insert("rope_theta".to_owned(), 1_000_000.0.into());
    }
    Ok(config)
}

/// Writes the common keys of Gemma 2 and 3.
fn newer(model: &Model, floats: Floats, class: &str, model_type: &str) -> Result<Config> {
    let mut config = read(model, floats, class, model_type)?;
    config.remove("hidden_act");
    let heads = model.heads()?;
    let scalar = if LAYERS_27B.contains(&model.layers) {
        model.size("embedding_length")? / heads
    } else {
        model.head_dim()?
    };
    set(&mut config, json!({"hidden_activation": ACTIVATION, "query_pre_attn_scalar": scalar}));
    Ok(config)
}

/// Gemma 4: layers without a window have heads of another shape.
pub(crate) fn gemma4(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = without_rope(model, "Gemma4ForCausalLM", "gemma4_text")?;
    config.remove("hidden_act");
    let sliding = model.sliding(6)?;
    set(
        &mut config,
        json!({
            "hidden_activation": ACTIVATION,
            "head_dim": model.size("attention.key_length_swa")?,
            "global_head_dim": model.size("attention.key_length")?,
            "final_logit_softcapping": model.number("final_logit_softcapping")?,
            "sliding_window": window(model)?,
            "layer_types": layer_types(&sliding),
            "rope_parameters": gemma4_ropes(model, floats)?,
        }),
    );
    gemma4_heads(model, &sliding, &mut config)?;
    gemma4_widths(model, &mut config)?;
    if experts::count(model)? > 0 {
        set(
            &mut config,
            json!({
                "enable_moe_block": true,
                "num_experts": model.size("expert_count")?,
                "top_k_experts": experts::used(model)?,
                "moe_intermediate_size": experts::width(model)?,
            }),
        );
    }
    Ok(config)
}

/// Returns the ropes of both types of layers. Without a window, only the first pairs of a head rotate: the others have huge factors.
fn gemma4_ropes(model: &Model, floats: Floats) -> Result<Value> {
    let name = "rope_freqs.weight";
    let factors = rope::numbers(model, floats, name)?;
    let rotated = factors.iter().take_while(|&&factor| (factor - 1.0).abs() < 1e-6).count();
    if factors.is_empty() || factors[rotated..].iter().any(|&factor| factor < 1e20) {
        let message =
            "must be 1 for the first pairs and huge for the others; other factors are not supported";
        return Err(model.tensor_error(name, message));
    }
    Ok(json!({
        "sliding_attention": {
            "rope_type": "default",
            "rope_theta": model.number("rope.freq_base_swa")?.unwrap_or(LOCAL_THETA),
        },
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": model.number("rope.freq_base")?.unwrap_or(1_000_000.0),
            "partial_rotary_factor": rotated as f64 / factors.len() as f64,
        },
    }))
}

/// Writes the numbers of key heads of both types of layers. In some models, layers without a window use keys as values.
fn gemma4_heads(model: &Model, sliding: &[bool], config: &mut Config) -> Result<()> {
    let name = "attention.head_count_kv";
    let heads = model.by_layer(name)?.ok_or_else(|| model.error(name, "is missing"))?;
    let of = |slides: bool| -> Result<Option<usize>> {
        let mut all = heads.iter().zip(sliding).filter(|(_, it)| **it == slides).map(|(heads, _)| *heads);
        let first = all.next();
        if all.all(|heads| Some(heads) == first) {
            return Ok(first);
        }
        Err(model.error(name, "differs between layers of one type"))
    };
    let (local, global) = (of(true)?, of(false)?);
    let full = (0..model.layers).filter(|&layer| !sliding[layer]);
    let with_keys: Vec<usize> = full.filter(|&layer| model.layer_has(layer, "attn_k.weight")).collect();
    let without_values = with_keys.iter().filter(|&&layer| !model.layer_has(layer, "attn_v.weight")).count();
    if without_values != 0 && without_values != with_keys.len() {
        return Err(model.tensor_error("attn_v.weight", "is missing in some layers without a window"));
    }
    let keys_are_values = without_values > 0;
    if !keys_are_values && local.is_some() && global.is_some() && local != global {
        return Err(model.error(name, "differs between layers with and without a window"));
    }
    set(
        config,
        json!({
            "num_key_value_heads": local.or(global),
            "num_global_key_value_heads": global.filter(|_| keys_are_values),
            "attention_k_eq_v": keys_are_values,
        }),
    );
    Ok(())
}

/// Writes the widths of feed-forward blocks and of per-layer embeddings.
fn gemma4_widths(model: &Model, config: &mut Config) -> Result<()> {
    let borrowing = model.optional_size("attention.shared_kv_layers")?.unwrap_or(0);
    let name = "feed_forward_length";
    let widths = model.by_layer(name)?.ok_or_else(|| model.error(name, "is missing"))?;
    let first = model.layers.saturating_sub(borrowing);
    let (narrow, last) = (widths[0], widths[model.layers - 1]);
    let doubled = borrowing > 0 && first > 0 && last == narrow.saturating_mul(2);
    let expected = |layer: usize| if doubled && layer >= first { last } else { narrow };
    if (0..model.layers).any(|layer| widths[layer] != expected(layer)) {
        let message = "must be the same in all layers, or double in the last attention.shared_kv_layers";
        return Err(model.error(name, message));
    }
    let per_layer = model.optional_size("embedding_length_per_layer_input")?.unwrap_or(0);
    set(
        config,
        json!({
            "intermediate_size": narrow,
            "use_double_wide_mlp": doubled,
            "num_kv_shared_layers": borrowing,
            "hidden_size_per_layer_input": per_layer,
        }),
    );
    if let Some(index) = model.find("per_layer_token_embd.weight") {
        let rows = model.tensors[index].shape.first().copied().unwrap_or(0);
        config.insert("vocab_size_per_layer_input".to_owned(), rows.into());
    }
    Ok(())
}
