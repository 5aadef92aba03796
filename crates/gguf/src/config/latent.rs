//! Families with latent attention.

use serde_json::json;

use super::base::{epsilon, sizes};
use super::keys::{Config, Floats, set};
use super::{experts, rope};
use crate::error::Result;
use crate::model::Model;

/// The divisor of `yarn_log_multiplier`, which is stored as a product.
const LOG_MULTIPLIER: f64 = 0.1;

/// DeepSeek-V2 and V3, and the families that are stored like them: Kimi K2, GLM 4.7 Flash, Youtu.
pub(crate) fn deepseek(model: &Model, floats: Floats) -> Result<Config> {
    if experts::count(model)? == 0 {
        let mut config = read(model, floats, "YoutuForCausalLM", "youtu")?;
        config.insert("rope_interleave".to_owned(), true.into());
        return Ok(config);
    }
    // Old files of V2 have no scoring function.
    let corrected = experts::corrected(model);
    let usual = if corrected { "sigmoid" } else { "softmax" };
    let scoring = experts::scoring(model, usual)?;
    let (class, model_type) = match scoring {
        "sigmoid" => ("DeepseekV3ForCausalLM", "deepseek_v3"),
        _ => ("DeepseekV2ForCausalLM", "deepseek_v2"),
    };
    if corrected != (scoring == "sigmoid") {
        let message = format!("is {scoring}; only sigmoids have exp_probs_b.bias, and all of them do");
        return Err(model.error("expert_gating_func", message));
    }
    let mut config = read(model, floats, class, model_type)?;
    experts::write_deepseek(model, &mut config, false)?;
    let grouped = experts::groups(model, "expert_group_count")? > 1;
    let method = match (corrected, grouped) {
        (true, _) => "noaux_tc",
        (false, true) => "group_limited_greedy",
        (false, false) => "greedy",
    };
    set(&mut config, json!({"scoring_func": scoring, "topk_method": method, "moe_layer_freq": 1}));
    if scoring == "softmax" && config["norm_topk_prob"] == json!(true) {
        return Err(model.error("expert_weights_norm", "is true; it must be false in DeepSeek-V2"));
    }
    Ok(config)
}

/// Mistral 4.
pub(crate) fn mistral4(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "Mistral4ForCausalLM", "mistral4")?;
    experts::expect_scoring(model, "softmax")?;
    experts::write_deepseek(model, &mut config, true)?;
    let mut scaling = config.remove("rope_scaling").unwrap_or_else(|| json!({}));
    scaling["rope_theta"] = config["rope_theta"].clone();
    if let Some(beta) = model.number("attention.temperature_scale")? {
        scaling["llama_4_scaling_beta"] = beta.into();
    }
    config.insert("rope_parameters".to_owned(), scaling);
    Ok(config)
}

/// MiniCPM 3. Its factors are not stored; they are the same in all published models.
pub(crate) fn minicpm3(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "MiniCPM3ForCausalLM", "minicpm3")?;
    set(&mut config, json!({"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}));
    rope::write_long(model, floats, &mut config)?;
    Ok(config)
}

/// Kimi Linear: latent attention without rope in every fourth layer, Kimi Delta Attention in the others.
pub(crate) fn kimi_linear(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "KimiLinearForCausalLM", "kimi_linear")?;
    let is_linear = |layer: usize| model.layer_has(layer, "ssm_a");
    let numbers = |linear: bool| -> Vec<usize> {
        (0..model.layers).filter(|&layer| is_linear(layer) == linear).map(|layer| layer + 1).collect()
    };
    let count = model.size("expert_count")?;
    experts::write_deepseek(model, &mut config, true)?;
    set(
        &mut config,
        json!({
            "num_experts": count,
            "num_experts_per_token": experts::used(model)?,
            "num_shared_experts": experts::shared(model)?,
            "moe_renormalize": experts::normalizes(model, true)?,
            "moe_router_activation_func": experts::scoring(model, "sigmoid")?,
            "linear_attn_config": {
                "num_heads": model.heads()?,
                "head_dim": model.size("kda.head_dim")?,
                "short_conv_kernel_size": model.size("ssm.conv_kernel")?,
                "kda_layers": numbers(true),
                "full_attn_layers": numbers(false),
            },
        }),
    );
    Ok(config)
}

/// Returns the keys of latent attention. Files with a split expansion of latents store the sizes of a head under other keys.
fn read(model: &Model, floats: Floats, class: &str, model_type: &str) -> Result<Config> {
    let mut config = sizes(model, class, model_type)?;
    let rotated = model.size("rope.dimension_count")?;
    let name = match model.optional_size("attention.key_length_mla")? {
        Some(_) => "attention.key_length_mla",
        None => "attention.key_length",
    };
    let width = model.size(name)?;
    let Some(nope) = width.checked_sub(rotated).filter(|&nope| nope > 0) else {
        let message = format!("is {width}; it must be above rope.dimension_count, which is {rotated}");
        return Err(model.error(name, message));
    };
    let (heads, rank) = (model.heads()?, model.size("attention.kv_lora_rank")?);
    set(
        &mut config,
        json!({
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "q_lora_rank": model.positive_size("attention.q_lora_rank")?,
            "kv_lora_rank": rank,
            "qk_nope_head_dim": nope,
            "qk_rope_head_dim": rotated,
            "v_head_dim": value_width(model, heads, nope)?,
            "rms_norm_eps": epsilon(model, "attention.layer_norm_rms_epsilon")?,
            "attention_bias": model.any_has("attn_q_a.bias"),
            "hidden_act": "silu",
        }),
    );
    rope::write(model, floats, &mut config)?;
    if let (Some(scaling), Some(product)) =
        (config.get_mut("rope_scaling"), model.number("rope.scaling.yarn_log_multiplier")?)
    {
        let sharpness = (product / LOG_MULTIPLIER * 1e5).round() / 1e5;
        (scaling["mscale"], scaling["mscale_all_dim"]) = (sharpness.into(), sharpness.into());
    }
    Ok(config)
}

/// Returns the width of a value of a head.
fn value_width(model: &Model, heads: usize, nope: usize) -> Result<usize> {
    for name in ["attention.value_length_mla", "attention.value_length"] {
        if let Some(width) = model.positive_size(name)? {
            return Ok(width);
        }
    }
    let rows = model.rows_of("attn_kv_b.weight").unwrap_or(0) / heads;
    rows.checked_sub(nope)
        .filter(|&width| width > 0)
        .ok_or_else(|| model.error("attention.value_length", "is missing"))
}
