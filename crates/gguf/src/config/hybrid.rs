//! Families with gated delta layers or short convolutions.

use serde_json::json;

use super::base::{has_biases, read, rotated};
use super::experts;
use super::keys::{Config, Floats, set};
use crate::error::Result;
use crate::model::Model;

/// Qwen 3.5.
pub(crate) fn qwen3_5(model: &Model, floats: Floats) -> Result<Config> {
    gated_delta(model, floats, "Qwen3_5ForCausalLM", "qwen3_5_text")
}

/// Qwen 3.5 with experts. Qwen 3 Next is stored with the same layout, except for corrections and decays.
pub(crate) fn qwen3_5_moe(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = gated_delta(model, floats, "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text")?;
    if !experts::normalizes(model, true)? {
        return Err(model.error("expert_weights_norm", "is false; it must be true in this family"));
    }
    experts::write_qwen(model, &mut config, true)?;
    Ok(config)
}

fn gated_delta(model: &Model, floats: Floats, class: &str, model_type: &str) -> Result<Config> {
    let mut config = read(model, floats, class, model_type)?;
    let values = model.size("ssm.time_step_rank")?;
    let types: Vec<&str> = recurrent(model)?
        .iter()
        .map(|&is_linear| if is_linear { "linear_attention" } else { "full_attention" })
        .collect();
    set(
        &mut config,
        json!({
            "attention_bias": has_biases(model),
            "attn_output_gate": true,
            "layer_types": types,
            "linear_num_key_heads": model.size("ssm.group_count")?,
            "linear_num_value_heads": values,
            "linear_key_head_dim": model.size("ssm.state_size")?,
            "linear_value_head_dim": model.size("ssm.inner_size")? / values,
            "linear_conv_kernel_dim": model.size("ssm.conv_kernel")?,
        }),
    );
    write_rope(model, &mut config)?;
    Ok(config)
}

/// Returns true for each layer with the gated delta rule: by its tensors.
fn recurrent(model: &Model) -> Result<Vec<bool>> {
    let is_linear = |layer| (model.layer_has(layer, "ssm_a"), model.layer_has(layer, "attn_q.weight"));
    (0..model.layers)
        .map(|layer| match is_linear(layer) {
            (true, false) => Ok(true),
            (false, true) => Ok(false),
            _ => {
                let message = "and ssm_a: a layer must have exactly one of them";
                Err(model.tensor_error(&format!("blk.{layer}.attn_q.weight"), message))
            }
        })
        .collect()
}

/// Moves the keys of rope into one section, and adds the rotated part of a head and the axes of pictures.
fn write_rope(model: &Model, config: &mut Config) -> Result<()> {
    let mut section = config.remove("rope_scaling").unwrap_or_else(|| json!({"rope_type": "default"}));
    section["rope_theta"] = config.remove("rope_theta").unwrap_or_default();
    section["partial_rotary_factor"] = rotated(model)?.into();
    if let Some(sections) = model.metadata.integers(&model.key("rope.dimension_sections"))?
        && let [time, height, width, ..] = *sections.as_slice()
        && time > 0
    {
        section["mrope_section"] = json!([time, height, width]);
        section["mrope_interleaved"] = true.into();
    }
    config.insert("rope_parameters".to_owned(), section);
    Ok(())
}

/// LFM2.
pub(crate) fn lfm2(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = short_convs(model, floats, "Lfm2ForCausalLM", "lfm2")?;
    set(&mut config, json!({"block_auto_adjust_ff_dim": false}));
    Ok(config)
}

/// LFM2 with experts.
pub(crate) fn lfm2_moe(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = short_convs(model, floats, "Lfm2MoeForCausalLM", "lfm2_moe")?;
    experts::expect_scoring(model, "sigmoid")?;
    experts::write_sizes(model, &mut config)?;
    set(
        &mut config,
        json!({
            "num_dense_layers": experts::dense_layers(model)?,
            "use_expert_bias": experts::corrected(model),
            "norm_topk_prob": experts::normalizes(model, true)?,
            "routed_scaling_factor": experts::scale(model)?,
        }),
    );
    Ok(config)
}

fn short_convs(model: &Model, floats: Floats, class: &str, model_type: &str) -> Result<Config> {
    let mut config = read(model, floats, class, model_type)?;
    let epsilon = config.remove("rms_norm_eps").unwrap_or_default();
    let is_conv = |layer| model.layer_has(layer, "shortconv.conv.weight");
    let kind = |layer| if is_conv(layer) { "conv" } else { "full_attention" };
    let types: Vec<&str> = (0..model.layers).map(kind).collect();
    set(
        &mut config,
        json!({
            "norm_eps": epsilon,
            "conv_L_cache": model.size("shortconv.l_cache")?,
            "conv_bias": model.any_has("shortconv.conv.bias"),
            "layer_types": types,
            "tie_embedding": !model.has("output.weight"),
        }),
    );
    Ok(config)
}
