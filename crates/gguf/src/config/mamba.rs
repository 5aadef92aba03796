//! Families with Mamba-2 layers.

use serde_json::{Value, json};

use super::base::{epsilon, has_biases, read, sizes};
use super::keys::{Config, Floats, set};
use super::{experts, llama};
use crate::error::Result;
use crate::model::Model;

/// The sizes of a Mamba-2 layer.
struct Mamba {
    inner: usize,
    heads: usize,
    state: usize,
    groups: usize,
    taps: usize,
}

impl Mamba {
    fn read(model: &Model) -> Result<Self> {
        let mamba = Self {
            inner: model.size("ssm.inner_size")?,
            heads: model.size("ssm.time_step_rank")?,
            state: model.size("ssm.state_size")?,
            groups: model.size("ssm.group_count")?,
            taps: model.size("ssm.conv_kernel")?,
        };
        if !mamba.inner.is_multiple_of(mamba.heads) {
            let message = format!("is {}; it must divide ssm.inner_size, {}", mamba.heads, mamba.inner);
            return Err(model.error("ssm.time_step_rank", message));
        }
        Ok(mamba)
    }

    fn head_dim(&self) -> usize {
        self.inner / self.heads
    }

    /// Returns the factor from the width of the model to the width of the layer.
    fn expand(&self, model: &Model) -> Result<usize> {
        let width = model.size("embedding_length")?;
        if !self.inner.is_multiple_of(width) {
            let message = format!("is {}; it must be a multiple of embedding_length, {width}", self.inner);
            return Err(model.error("ssm.inner_size", message));
        }
        Ok(self.inner / width)
    }
}

/// Mamba-2.
pub(crate) fn mamba2(model: &Model, _: Floats) -> Result<Config> {
    let mut config = sizes(model, "Mamba2ForCausalLM", "mamba2")?;
    let mamba = Mamba::read(model)?;
    let expand = mamba.expand(model)?;
    set(
        &mut config,
        json!({
            "num_heads": mamba.heads,
            "head_dim": mamba.head_dim(),
            "state_size": mamba.state,
            "n_groups": mamba.groups,
            "conv_kernel": mamba.taps,
            "expand": expand,
            "use_conv_bias": model.any_has("ssm_conv1d.bias"),
            "use_bias": model.any_has("ssm_in.bias"),
            "layer_norm_epsilon": epsilon(model, "attention.layer_norm_rms_epsilon")?,
            "hidden_act": "silu",
        }),
    );
    config.remove("intermediate_size");
    Ok(config)
}

/// Granite 4.
pub(crate) fn granite_hybrid(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "GraniteMoeHybridForCausalLM", "granitemoehybrid")?;
    llama::granite_factors(model, &mut config)?;
    let mamba = Mamba::read(model)?;
    let expand = mamba.expand(model)?;
    let kind = |layer| if model.layer_has(layer, "ssm_a") { "mamba" } else { "attention" };
    let types: Vec<&str> = (0..model.layers).map(kind).collect();
    let rope = model.flag("rope.scaling.finetuned")?.unwrap_or(false);
    write_expanded(model, &mut config, &mamba);
    set(
        &mut config,
        json!({
            "attention_bias": has_biases(model),
            "layer_types": types,
            "position_embedding_type": if rope { "rope" } else { "nope" },
            "mamba_expand": expand,
            "num_local_experts": experts::count(model)?,
            "shared_intermediate_size":
                model.rows_of("ffn_up_shexp.weight").or(model.rows_of("ffn_up.weight")),
        }),
    );
    if experts::count(model)? > 0 {
        let keys = json!({
            "num_experts_per_tok": experts::used(model)?,
            "intermediate_size": experts::width(model)?,
        });
        set(&mut config, keys);
    }
    Ok(config)
}

/// Writes the keys of Mamba-2 in Granite and Falcon-H1.
fn write_expanded(model: &Model, config: &mut Config, mamba: &Mamba) {
    set(
        config,
        json!({
            "mamba_n_heads": mamba.heads,
            "mamba_d_head": mamba.head_dim(),
            "mamba_d_state": mamba.state,
            "mamba_n_groups": mamba.groups,
            "mamba_d_conv": mamba.taps,
            "mamba_conv_bias": model.any_has("ssm_conv1d.bias"),
            "mamba_proj_bias": model.any_has("ssm_in.bias"),
        }),
    );
}

/// Falcon-H1. All its factors are part of the stored weights.
pub(crate) fn falcon_h1(model: &Model, floats: Floats) -> Result<Config> {
    let mut config = read(model, floats, "FalconH1ForCausalLM", "falcon_h1")?;
    let mamba = Mamba::read(model)?;
    write_expanded(model, &mut config, &mamba);
    set(
        &mut config,
        json!({
            "attention_bias": has_biases(model),
            "mlp_bias": model.any_has("ffn_down.bias"),
            "projectors_bias": model.any_has("ssm_out.bias"),
            "mamba_d_ssm": mamba.inner,
            "mamba_rms_norm": model.any_has("ssm_norm.weight"),
            "mamba_norm_before_gate": false,
        }),
    );
    for key in [
        "embedding_multiplier",
        "lm_head_multiplier",
        "key_multiplier",
        "attention_in_multiplier",
        "attention_out_multiplier",
        "ssm_in_multiplier",
        "ssm_out_multiplier",
    ] {
        config.insert(key.to_owned(), 1.0.into());
    }
    let ones = |count: usize| Value::from(vec![1.0; count]);
    set(&mut config, json!({"mlp_multipliers": ones(2), "ssm_multipliers": ones(5)}));
    Ok(config)
}

/// Nemotron-H, and Nemotron 3 with experts. Each layer has one part.
pub(crate) fn nemotron_h(model: &Model, _: Floats) -> Result<Config> {
    let mut config = sizes(model, "NemotronHForCausalLM", "nemotron_h")?;
    let mamba = Mamba::read(model)?;
    let pattern: Option<String> = (0..model.layers).map(|layer| part(model, layer)).collect();
    let pattern = pattern.ok_or_else(|| {
        model.tensor_error("blk.*", "must have Mamba-2, attention, or a feed-forward block in each layer")
    })?;
    let names = ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"];
    let norm = if model.number(names[0])?.is_some() { names[0] } else { names[1] };
    set(
        &mut config,
        json!({
            "hybrid_override_pattern": pattern,
            "num_attention_heads": model.heads()?,
            "num_key_value_heads": model.kv_heads()?,
            "head_dim": model.head_dim()?,
            "attention_head_dim": model.head_dim()?,
            "attention_bias": has_biases(model),
            "mamba_num_heads": mamba.heads,
            "mamba_head_dim": mamba.head_dim(),
            "ssm_state_size": mamba.state,
            "n_groups": mamba.groups,
            "conv_kernel": mamba.taps,
            "use_conv_bias": model.any_has("ssm_conv1d.bias"),
            "use_bias": model.any_has("ssm_in.bias"),
            "mlp_bias": model.any_has("ffn_down.bias"),
            "mlp_hidden_act": "relu2",
            "mamba_hidden_act": "silu",
            "layer_norm_epsilon": epsilon(model, norm)?,
        }),
    );
    if experts::count(model)? > 0 {
        experts::write_deepseek(model, &mut config, true)?;
        config.remove("first_k_dense_replace");
        let width = model.rows_of("ffn_up_shexp.weight");
        let latent = model.positive_size("moe_latent_size")?;
        set(&mut config, json!({"moe_shared_expert_intermediate_size": width, "moe_latent_size": latent}));
    }
    Ok(config)
}

/// Returns the part of a layer; `None` if it is not known.
fn part(model: &Model, layer: usize) -> Option<char> {
    let parts =
        [("ssm_a", 'M'), ("attn_q.weight", '*'), ("ffn_gate_inp.weight", 'E'), ("ffn_up.weight", '-')];
    parts.into_iter().find(|(tensor, _)| model.layer_has(layer, tensor)).map(|(_, part)| part)
}
