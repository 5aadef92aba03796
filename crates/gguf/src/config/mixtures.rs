//! Families with mixtures of experts.

use serde_json::json;

use super::base::{has_biases, layer_types, read, rotated, window};
use super::keys::{Config, Floats, set};
use super::{experts, llama, rope, varied};
use crate::error::Result;
use crate::model::Model;

/// Qwen 2 with experts.
pub(crate) fn qwen2_moe(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "Qwen2MoeForCausalLM", "qwen2_moe")?;
    set(&mut config, json!({"qkv_bias": has_biases(model), "use_sliding_window": false}));
    experts::write_qwen(model, &mut config, experts::normalizes(model, false)?)?;
    Ok(config)
}

/// Qwen 3 with experts, and the text part of Qwen 3 VL with experts.
pub(crate) fn qwen3_moe(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "Qwen3MoeForCausalLM", "qwen3_moe")?;
    set(&mut config, json!({"attention_bias": has_biases(model), "use_sliding_window": false}));
    experts::write_qwen(model, &mut config, experts::normalizes(model, true)?)?;
    Ok(config)
}

/// OLMoE.
pub(crate) fn olmoe(model: &Model, floats: Floats) -> Result<Config> {
    if model.number("attention.clamp_kqv")?.is_some() {
        return Err(model.error("attention.clamp_kqv", "is set; clipping is not supported"));
    }
    let mut config = read(model, floats, "OlmoeForCausalLM", "olmoe")?;
    experts::write_qwen(model, &mut config, experts::normalizes(model, false)?)?;
    config.insert("intermediate_size".to_owned(), experts::width(model)?.into());
    Ok(config)
}

/// gpt-oss: every other layer has a window.
pub(crate) fn gpt_oss(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "GptOssForCausalLM", "gpt_oss")?;
    if let Some(scaling) = config.get_mut("rope_scaling") {
        // Not stored; the same in all published models.
        scaling["truncate"] = false.into();
    }
    experts::write_local_sizes(model, &mut config)?;
    set(
        &mut config,
        json!({
            "attention_bias": has_biases(model),
            "sliding_window": window(model)?,
            "layer_types": layer_types(&model.sliding(2)?),
        }),
    );
    Ok(config)
}

/// Granite with experts.
pub(crate) fn granite_moe(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "GraniteMoeForCausalLM", "granitemoe")?;
    llama::granite_factors(model, &mut config)?;
    experts::write_local_sizes(model, &mut config)?;
    set(
        &mut config,
        json!({
            "attention_bias": has_biases(model),
        }),
    );
    if let Some(width) = model.rows_of("ffn_up_shexp.weight") {
        set(
            &mut config,
            json!({
                "architectures": ["GraniteMoeSharedForCausalLM"],
                "model_type": "granitemoeshared",
                "shared_intermediate_size": width,
            }),
        );
    }
    Ok(config)
}

/// Phi's mixture: layer norms with biases.
pub(crate) fn phimoe(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "PhimoeForCausalLM", "phimoe")?;
    experts::write_local_sizes(model, &mut config)?;
    set(
        &mut config,
        json!({
            "attention_bias": has_biases(model),
            "lm_head_bias": model.has("output.bias"),
            "sliding_window": null,
        }),
    );
    rope::write_long(model, floats, &mut config)?;
    Ok(config)
}

/// Hunyuan's mixture.
pub(crate) fn hunyuan_moe(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = varied::hunyuan(model, floats)?;
    set(
        &mut config,
        json!({
            "architectures": ["HunYuanMoEV1ForCausalLM"],
            "model_type": "hunyuan_v1_moe",
            "num_experts": model.size("expert_count")?,
            "moe_topk": experts::used(model)?,
            "num_shared_expert": 1,
            "intermediate_size": experts::width(model)?,
        }),
    );
    Ok(config)
}

/// GLM 4.5 and later, with experts.
pub(crate) fn glm4_moe(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "Glm4MoeForCausalLM", "glm4_moe")?;
    experts::expect_scoring(model, "sigmoid")?;
    set(
        &mut config,
        json!({
            "attention_bias": has_biases(model),
            "use_qk_norm": model.any_has("attn_q_norm.weight"),
            "partial_rotary_factor": rotated(model)?,
        }),
    );
    experts::write_deepseek(model, &mut config, true)?;
    Ok(config)
}

/// dots.llm1.
pub(crate) fn dots1(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "Dots1ForCausalLM", "dots1")?;
    experts::expect_scoring(model, "sigmoid")?;
    set(&mut config, json!({"attention_bias": has_biases(model), "sliding_window": null}));
    experts::write_deepseek(model, &mut config, false)?;
    Ok(config)
}

/// ERNIE 4.5 with experts.
pub(crate) fn ernie4_5_moe(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "Ernie4_5_MoeForCausalLM", "ernie4_5_moe")?;
    let width = experts::width(model)?;
    let shared = model.rows_of("ffn_up_shexp.weight").unwrap_or(0);
    if !shared.is_multiple_of(width) {
        let name = "blk.*.ffn_up_shexp.weight";
        let message = format!("has {shared} rows; it must be a multiple of {width}, the width of an expert");
        return Err(model.tensor_error(name, message));
    }
    set(
        &mut config,
        json!({
            "use_bias": has_biases(model),
            "moe_num_experts": model.size("expert_count")?,
            "moe_k": experts::used(model)?,
            "moe_intermediate_size": width,
            "moe_num_shared_experts": shared / width,
            "moe_layer_start_index": experts::dense_layers(model)?,
            "moe_layer_interval": 1,
        }),
    );
    Ok(config)
}

/// Ling 2 and Ring 2.
pub(crate) fn bailing(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "BailingMoeV2ForCausalLM", "bailing_moe")?;
    let shared = experts::shared(model)?;
    experts::write_deepseek(model, &mut config, true)?;
    set(
        &mut config,
        json!({
            "use_qkv_bias": has_biases(model),
            "use_qk_norm": model.any_has("attn_q_norm.weight"),
            "partial_rotary_factor": rotated(model)?,
            "score_function": experts::scoring(model, "sigmoid")?,
            "moe_router_enable_expert_bias": experts::corrected(model),
            "num_experts": model.size("expert_count")?,
            "num_shared_experts": shared,
        }),
    );
    if let Some(rows) = model.rows_of("ffn_up_shexp.weight").filter(|_| shared > 0) {
        config.insert("moe_shared_expert_intermediate_size".to_owned(), (rows / shared).into());
    }
    Ok(config)
}

/// MiniMax M2.
pub(crate) fn minimax_m2(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "MiniMaxM2ForCausalLM", "minimax_m2")?;
    experts::expect_scoring(model, "sigmoid")?;
    experts::write_local_sizes(model, &mut config)?;
    set(
        &mut config,
        json!({
            "use_qk_norm": model.any_has("attn_q_norm.weight"),
            "rotary_dim": model.optional_size("rope.dimension_count")?.unwrap_or(model.head_dim()?),
        }),
    );
    Ok(config)
}

/// AFMoE: three of four layers have a window.
pub(crate) fn afmoe(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "AfmoeForCausalLM", "afmoe")?;
    experts::expect_scoring(model, "sigmoid")?;
    experts::write_sizes(model, &mut config)?;
    set(
        &mut config,
        json!({
            "num_shared_experts": experts::shared(model)?,
            "num_dense_layers": experts::dense_layers(model)?,
            "route_norm": experts::normalizes(model, true)?,
            "route_scale": experts::scale(model)?,
            "mup_enabled": true,
            "sliding_window": window(model)?,
            "layer_types": layer_types(&model.sliding(4)?),
        }),
    );
    Ok(config)
}

/// K-EXAONE.
pub(crate) fn exaone_moe(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = varied::exaone4(model, floats)?;
    experts::expect_scoring(model, "sigmoid")?;
    experts::write_deepseek(model, &mut config, true)?;
    set(
        &mut config,
        json!({
            "architectures": ["ExaoneMoeForCausalLM"],
            "model_type": "exaone_moe",
            "num_experts": model.size("expert_count")?,
            "num_shared_experts": experts::shared(model)?,
        }),
    );
    Ok(config)
}

/// Hy 3.
pub(crate) fn hy_v3(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "HYV3ForCausalLM", "hy_v3")?;
    experts::expect_scoring(model, "sigmoid")?;
    experts::write_deepseek(model, &mut config, true)?;
    set(
        &mut config,
        json!({
            "attention_bias": has_biases(model),
            "mlp_bias": model.any_has("ffn_down.bias"),
            "num_experts": model.size("expert_count")?,
            "num_shared_experts": experts::shared(model)?,
            "router_scaling_factor": experts::scale(model)?,
        }),
    );
    Ok(config)
}
