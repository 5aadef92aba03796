//! Families with separate layouts.

use serde_json::{Value, json};

use super::base::{epsilon, has_biases, layer_types, read, rotated, window, with_heads};
use super::keys::{Config, Floats, set};
use super::rope;
use crate::error::Result;
use crate::model::Model;

/// Returns a config with layer norms. `epsilon_key` is the key of their epsilon.
fn with_layer_norms(
    model: &Model,
    floats: Floats,
    [class, model_type, epsilon_key]: [&str; 3],
) -> Result<Config> {
    let mut config = with_heads(model, class, model_type)?;
    set(&mut config, json!({epsilon_key: epsilon(model, "attention.layer_norm_epsilon")?}));
    rope::write(model, floats, &mut config)?;
    Ok(config)
}

/// Phi 3 and 4: a rope factor for each pair in models with long contexts.
pub(crate) fn phi3(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "Phi3ForCausalLM", "phi3")?;
    set(&mut config, json!({"sliding_window": window(model)?, "partial_rotary_factor": rotated(model)?}));
    if let Some(original) = model.positive_size("rope.scaling.original_context_length")? {
        config.insert("original_max_position_embeddings".to_owned(), original.into());
    }
    rope::write_long(model, floats, &mut config)?;
    Ok(config)
}

/// Command R.
pub(crate) fn cohere(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = with_layer_norms(model, floats, ["CohereForCausalLM", "cohere", "layer_norm_eps"])?;
    set(
        &mut config,
        json!({
            "head_dim": model.head_dim()?,
            "use_qk_norm": model.any_has("attn_q_norm.weight"),
            "attention_bias": has_biases(model),
            "logit_scale": model.number("logit_scale")?.unwrap_or(0.0625),
        }),
    );
    Ok(config)
}

/// Command R7B and A: three of four layers have a window.
pub(crate) fn cohere2(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = with_layer_norms(model, floats, ["Cohere2ForCausalLM", "cohere2", "layer_norm_eps"])?;
    set(
        &mut config,
        json!({
            "head_dim": model.head_dim()?,
            "attention_bias": has_biases(model),
            "logit_scale": model.number("logit_scale")?.unwrap_or(0.0625),
            "sliding_window": window(model)?,
            "layer_types": layer_types(&model.sliding(4)?),
        }),
    );
    Ok(config)
}

/// GLM 4 of 2024.
pub(crate) fn glm(model: &Model, floats: Floats) -> Result<Config> {
    glm_of(model, floats, "GlmForCausalLM", "glm")
}

/// GLM 4 of 2025.
pub(crate) fn glm4(model: &Model, floats: Floats) -> Result<Config> {
    if has_sections(model)? {
        let message = "is set; the text part of GLM 4V is not supported";
        return Err(model.error("rope.dimension_sections", message));
    }
    glm_of(model, floats, "Glm4ForCausalLM", "glm4")
}

/// Returns true if rows of pictures have positions on several axes. The rows of queries and keys are stored in another order then.
fn has_sections(model: &Model) -> Result<bool> {
    let sections = model.metadata.integers(&model.key("rope.dimension_sections"))?;
    Ok(sections.is_some_and(|sections| sections.iter().any(|&section| section > 0)))
}

fn glm_of(model: &Model, floats: Floats, class: &str, model_type: &str) -> Result<Config> {
    let mut config = read(model, floats, class, model_type)?;
    set(&mut config, json!({"attention_bias": has_biases(model), "partial_rotary_factor": rotated(model)?}));
    Ok(config)
}

/// StarCoder 2.
pub(crate) fn starcoder2(model: &Model, floats: Floats) -> Result<Config> {
    let mut config =
        with_layer_norms(model, floats, ["Starcoder2ForCausalLM", "starcoder2", "norm_epsilon"])?;
    set(
        &mut config,
        json!({
            "hidden_act": "gelu_pytorch_tanh",
            "use_bias": has_biases(model),
            "sliding_window": window(model)?,
        }),
    );
    Ok(config)
}

/// Nemotron and Minitron.
pub(crate) fn nemotron(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = with_layer_norms(model, floats, ["NemotronForCausalLM", "nemotron", "norm_eps"])?;
    set(
        &mut config,
        json!({
            "head_dim": model.head_dim()?,
            "hidden_act": "relu2",
            "attention_bias": has_biases(model),
            "mlp_bias": model.any_has("ffn_up.bias"),
            "partial_rotary_factor": rotated(model)?,
        }),
    );
    Ok(config)
}

/// OLMo 1: norms without weights.
pub(crate) fn olmo(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = with_layer_norms(model, floats, ["OlmoForCausalLM", "olmo", "layer_norm_eps"])?;
    if let Some(clip) = model.number("attention.clamp_kqv")?.filter(|&clip| clip > 0.0) {
        config.insert("clip_qkv".to_owned(), clip.into());
    }
    Ok(config)
}

/// StableLM. Without a norm before the feed-forward block, both parts of a layer run in parallel.
pub(crate) fn stablelm(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = with_layer_norms(model, floats, ["StableLmForCausalLM", "stablelm", "layer_norm_eps"])?;
    set(
        &mut config,
        json!({
            "hidden_act": "silu",
            "use_qkv_bias": has_biases(model),
            "qk_layernorm": model.any_has("attn_q_norm.weight"),
            "use_parallel_residual": !model.any_has("ffn_norm.weight"),
            "partial_rotary_factor": rotated(model)?,
        }),
    );
    Ok(config)
}

/// EXAONE 3 and 3.5.
pub(crate) fn exaone(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "ExaoneForCausalLM", "exaone")?;
    let epsilon = config.remove("rms_norm_eps").unwrap_or(Value::Null);
    set(
        &mut config,
        json!({
            "num_layers": model.layers,
            "layer_norm_epsilon": epsilon,
            "activation_function": "silu",
        }),
    );
    Ok(config)
}

/// EXAONE 4: in models with windows, three of four layers have one.
pub(crate) fn exaone4(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "Exaone4ForCausalLM", "exaone4")?;
    let slides = window(model)?;
    config.insert("sliding_window".to_owned(), slides.map_or(Value::Null, Value::from));
    let types = if slides.is_some() { model.sliding(4)? } else { vec![false; model.layers] };
    config.insert("layer_types".to_owned(), layer_types(&types).into());
    Ok(config)
}

/// OLMo 2 and 3. The latter has windows.
pub(crate) fn olmo2(model: &Model, floats: Floats) -> Result<Config> {
    let Some(slides) = window(model)? else {
        return read(model, floats, "Olmo2ForCausalLM", "olmo2");
    };
    let mut config = read(model, floats, "Olmo3ForCausalLM", "olmo3")?;
    set(&mut config, json!({"sliding_window": slides, "layer_types": layer_types(&model.sliding(4)?)}));
    Ok(config)
}

/// Hunyuan without experts. Its theta is stored with the scaling.
pub(crate) fn hunyuan(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense")?;
    set(
        &mut config,
        json!({
            "use_qk_norm": model.any_has("attn_q_norm.weight"),
            "attention_bias": has_biases(model),
        }),
    );
    Ok(config)
}
