//! Llama, Qwen 2 and 3, and families that differ only slightly.

use serde_json::json;

use super::base::{expect_whole_heads, has_biases, layer_types, read, window};
use super::experts;
use super::keys::{Config, Floats, set};
use crate::error::Result;
use crate::model::Model;

/// Llama, Mistral 7B, and Mixtral. InternLM 2 and XVERSE are stored like llama.
pub(crate) fn llama(model: &Model, floats: Floats) -> Result<Config> {
    expect_whole_heads(model)?;
    if experts::count(model)? > 0 {
        let mut config = read(model, floats, "MixtralForCausalLM", "mixtral")?;
        set(
            &mut config,
            json!({
                "num_local_experts": experts::count(model)?,
                "num_experts_per_tok": experts::used(model)?,
                "sliding_window": null,
            }),
        );
        return Ok(config);
    }
    let (queries, output) = (has_biases(model), model.any_has("attn_output.bias"));
    let feed_forward = model.any_has("ffn_down.bias");
    if queries != output {
        // Llama has one flag for the biases of all projections of attention.
        let mut config = read(model, floats, "InternLM3ForCausalLM", "internlm3")?;
        set(&mut config, json!({"qkv_bias": queries, "bias": output}));
        return Ok(config);
    }
    let mut config = read(model, floats, "LlamaForCausalLM", "llama")?;
    set(&mut config, json!({"attention_bias": queries, "mlp_bias": feed_forward}));
    Ok(config)
}

/// Ministral 3, and the text part of Mistral Small 3.
pub(crate) fn mistral3(model: &Model, floats: Floats) -> Result<Config> {
    expect_whole_heads(model)?;
    experts::expect_none(model)?;
    let Some(beta) = model.number("attention.temperature_scale")? else {
        let mut config = read(model, floats, "MistralForCausalLM", "mistral")?;
        set(&mut config, json!({"sliding_window": null}));
        return Ok(config);
    };
    let mut config = read(model, floats, "Ministral3ForCausalLM", "ministral3")?;
    let mut scaling = config.remove("rope_scaling").unwrap_or_else(|| json!({}));
    scaling["rope_theta"] = config["rope_theta"].clone();
    scaling["llama_4_scaling_beta"] = beta.into();
    if let Some(sharpness) = model.number("rope.scaling.yarn_log_multiplier")? {
        (scaling["mscale"], scaling["mscale_all_dim"]) = (sharpness.into(), sharpness.into());
    }
    set(&mut config, json!({"rope_parameters": scaling, "sliding_window": null}));
    Ok(config)
}

/// Granite.
pub(crate) fn granite(model: &Model, floats: Floats) -> Result<Config> {
    expect_whole_heads(model)?;
    let mut config = read(model, floats, "GraniteForCausalLM", "granite")?;
    set(
        &mut config,
        json!({"attention_bias": has_biases(model), "mlp_bias": model.any_has("ffn_down.bias")}),
    );
    granite_factors(model, &mut config)?;
    Ok(config)
}

/// Writes the factors of all Granites.
pub(super) fn granite_factors(model: &Model, config: &mut Config) -> Result<()> {
    let factors = [
        ("attention_multiplier", "attention.scale"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ];
    for (key, name) in factors {
        if let Some(factor) = model.number(name)? {
            config.insert(key.to_owned(), factor.into());
        }
    }
    if !config.contains_key("attention_multiplier") {
        let scale = (model.head_dim()? as f64).sqrt().recip();
        config.insert("attention_multiplier".to_owned(), scale.into());
    }
    Ok(())
}

/// MiniCPM.
pub(crate) fn minicpm(model: &Model, floats: Floats) -> Result<Config> {
    experts::expect_none(model)?;
    let mut config = read(model, floats, "MiniCPMForCausalLM", "minicpm")?;
    let (layers, width) = (model.layers as f64, model.size("embedding_length")? as f64);
    let depth = model.number("residual_scale")?.map_or(1.4, |scale| scale * layers.sqrt());
    let growth = model.number("logit_scale")?.unwrap_or(width / 256.0);
    if growth <= 0.0 {
        return Err(model.error("logit_scale", format!("is {growth}; it must be above 0")));
    }
    set(
        &mut config,
        json!({
            "scale_emb": model.number("embedding_scale")?.unwrap_or(12.0),
            "scale_depth": rounded(depth),
            "dim_model_base": rounded(width / growth),
            "attention_bias": has_biases(model),
        }),
    );
    Ok(config)
}

/// Returns a number without the error of a product of 32-bit floats.
fn rounded(number: f64) -> f64 {
    (number * 1e5).round() / 1e5
}

/// SmolLM 3: every fourth layer has no rope.
pub(crate) fn smollm3(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "SmolLM3ForCausalLM", "smollm3")?;
    set(
        &mut config,
        json!({
            "attention_bias": has_biases(model),
            "mlp_bias": model.any_has("ffn_down.bias"),
            "no_rope_layer_interval": 4,
            "use_sliding_window": false,
        }),
    );
    Ok(config)
}

/// Seed-OSS.
pub(crate) fn seed_oss(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "SeedOssForCausalLM", "seed_oss")?;
    set(
        &mut config,
        json!({
            "attention_bias": has_biases(model),
            "attention_out_bias": model.any_has("attn_output.bias"),
            "mlp_bias": model.any_has("ffn_down.bias"),
        }),
    );
    Ok(config)
}

/// ERNIE 4.5 without experts.
pub(crate) fn ernie4_5(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "Ernie4_5ForCausalLM", "ernie4_5")?;
    set(&mut config, json!({"use_bias": has_biases(model)}));
    Ok(config)
}

/// Qwen 2, and the text part of Qwen 2 VL. Text has the same position on all three axes, which is the usual rope.
pub(crate) fn qwen2(model: &Model, floats: Floats) -> Result<Config> {
    expect_whole_heads(model)?;
    let mut config = read(model, floats, "Qwen2ForCausalLM", "qwen2")?;
    slide_or_not(model, &mut config)?;
    Ok(config)
}

/// Qwen 3, and the text part of Qwen 3 VL.
pub(crate) fn qwen3(model: &Model, floats: Floats) -> Result<Config> {
    expect_whole_heads(model)?;
    let mut config = read(model, floats, "Qwen3ForCausalLM", "qwen3")?;
    set(&mut config, json!({"attention_bias": has_biases(model)}));
    slide_or_not(model, &mut config)?;
    Ok(config)
}

fn slide_or_not(model: &Model, config: &mut Config) -> Result<()> {
    let slides = window(model)?;
    set(config, json!({"use_sliding_window": slides.is_some(), "sliding_window": slides}));
    if slides.is_some() {
        config.insert("layer_types".to_owned(), layer_types(&model.sliding(0)?).into());
    }
    Ok(())
}
