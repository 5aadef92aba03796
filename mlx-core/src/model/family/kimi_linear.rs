//! Kimi Linear: Kimi Delta Attention in most layers, latent attention without rope in the others, and experts.

use super::hybrid::mix;
use super::latent::{self, DEEPSEEK};
use super::{layers, routed};
use crate::config::Fields;
use crate::error::Result;
use crate::model::config::DecoderConfig;
use crate::model::kimi_delta::KimiDeltaConfig;
use crate::model::mixer::MixerKind;
use crate::model::moe::{ExpertTensors, ScoringFunc};

/// The name of a Kimi Delta Attention layer in config.json.
const LINEAR: &str = "linear_attention";

/// Pairs of a key's name here and its name in other families.
const RENAMED: [(&str, &str); 6] = [
    ("model_max_length", "max_position_embeddings"),
    ("moe_renormalize", "norm_topk_prob"),
    ("num_expert_group", "n_group"),
    ("num_experts", "num_local_experts"),
    ("num_experts_per_token", "num_experts_per_tok"),
    ("num_shared_experts", "n_shared_experts"),
];

/// Kimi Linear.
pub(super) fn kimi_linear(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &renamed(fields)
        .without("rope_scaling")
        .without("rope_parameters")
        .with_default("routed_scaling_factor", 2.446.into())
        .with_default("intermediate_size", 9216.into());
    // This family has no default of `q_lora_rank`.
    let inner = if fields.has("q_lora_rank") {
        fields.clone()
    } else {
        fields.without("q_lora_rank").with_default("q_lora_rank", serde_json::Value::Null)
    };
    let usual = latent::LatentDefaults { max_position_embeddings: 1_048_576, eps: 1e-5, ..DEEPSEEK };
    let mut config = latent::decoder(&inner, &usual)?;
    config.layers.iter_mut().for_each(|layer| layer.rope = None);
    let count = config.layers.len();
    let section = fields.section("linear_attn_config")?;
    let delta = delta(fields, section.as_ref())?;
    let is_linear = linear_layers(fields, section.as_ref(), count)?;
    mix(&mut config, &is_linear, MixerKind::KimiDelta(delta));
    sparse(fields, config)
}

/// Gives the keys of this family their names in other families.
pub(super) fn renamed(fields: &Fields) -> Fields {
    RENAMED.iter().fold(fields.clone(), |fields, (own, key)| match fields.get(own) {
        Some(value) => fields.without(key).with_default(key, value.clone()).without(own),
        None => fields,
    })
}

/// Reads the config of the Kimi Delta Attention layers.
fn delta(fields: &Fields, section: Option<&Fields>) -> Result<KimiDeltaConfig> {
    let size = |own: &str, key: &str, usual: usize| -> Result<usize> {
        let own = section.map(|section| section.optional_size(own)).transpose()?.flatten();
        Ok(own.or(fields.optional_size(key)?).unwrap_or(usual))
    };
    let delta = KimiDeltaConfig {
        num_heads: size("num_heads", "linear_num_heads", 32)?,
        head_dim: size("head_dim", "linear_head_dim", 128)?,
        short_conv_kernel_size: size("short_conv_kernel_size", "linear_conv_kernel_dim", 4)?,
        low_rank: true,
        lower_bound: None,
    };
    check(fields, &delta)?;
    Ok(delta)
}

/// Checks the convolution and the size of the memory.
pub(super) fn check(fields: &Fields, delta: &KimiDeltaConfig) -> Result<()> {
    if delta.short_conv_kernel_size < 2 {
        return Err(fields.error("linear_conv_kernel_dim", "is 1; it must be at least 2"));
    }
    // Widths are products of keys. Together they must fit an i32, the type of array dimensions.
    let memory = delta.num_heads.saturating_mul(delta.head_dim.saturating_mul(delta.head_dim));
    if memory.saturating_mul(4) > i32::MAX as usize {
        return Err(fields.error("linear_num_heads", "times the sizes of a head is too large"));
    }
    Ok(())
}

/// Returns a flag for each layer, true if it is Kimi Delta Attention. `layer_types` decides, or else the lists of `linear_attn_config`, which
/// count from 1.
fn linear_layers(fields: &Fields, section: Option<&Fields>, count: usize) -> Result<Vec<bool>> {
    let Some(section) = section.filter(|it| it.has("kda_layers") && !fields.has("layer_types")) else {
        return layers::of_kind(fields, count, LINEAR, |layer| layer == 0 || !layer.is_multiple_of(4));
    };
    let linear = section.numbers("kda_layers")?;
    let full = section.numbers("full_attn_layers")?;
    let kinds: Vec<bool> = (1..=count).map(|layer| linear.contains(&(layer as f64))).collect();
    let wrong = (1..=count).find(|layer| {
        section.has("full_attn_layers") && full.contains(&(*layer as f64)) == kinds[*layer - 1]
    });
    match wrong {
        Some(layer) => {
            let message = format_args!("and full_attn_layers must name layer {layer} once");
            Err(section.error("kda_layers", message))
        }
        None => Ok(kinds),
    }
}

/// Adds the experts, which the first layers do not have.
fn sparse(fields: &Fields, config: DecoderConfig) -> Result<DecoderConfig> {
    let usual = routed::RoutingDefaults {
        num_experts: 256,
        num_experts_per_tok: 8,
        moe_intermediate_size: 1024,
        n_shared_experts: 1,
        first_k_dense_replace: 1,
        norm_topk_prob: true,
    };
    let mut experts = routed::corrected_experts(fields, &usual)?;
    experts.tensors = ExpertTensors::Each(["w1", "w3", "w2"]);
    experts.routing.scoring_func = match fields.optional_text("moe_router_activation_func")? {
        None | Some("sigmoid") => ScoringFunc::Sigmoid,
        Some("softmax") => ScoringFunc::Softmax,
        Some(other) => {
            let message = format_args!("{other:?} is not supported; supported are sigmoid and softmax");
            return Err(fields.error("moe_router_activation_func", message));
        }
    };
    routed::sparse_after_dense(fields, config, experts, usual.first_k_dense_replace)
}
