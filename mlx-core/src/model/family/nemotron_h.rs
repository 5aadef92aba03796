//! Nemotron-H: each layer is either Mamba-2, attention, or a feed-forward block, which is dense or has experts.

use super::base::{self, Defaults, LLAMA, flag};
use super::mamba::{BACKBONE_NAMES, SINGLE_PART_BLOCK, activation, check, time_step_limit};
use super::{mixtures, routed};
use crate::config::Fields;
use crate::error::Result;
use crate::model::config::{DecoderConfig, LayerConfig};
use crate::model::feed_forward::FeedForwardInput;
use crate::model::mamba2::{GatedNorm, Mamba2Config};
use crate::model::mixer::MixerKind;
use crate::model::moe::{
    ExpertActivation, ExpertTensors, LatentExpertsConfig, MoeConfig, SharedExpertConfig,
};

/// The maximum number of layers; a config with more is damaged.
const MAX_LAYERS: usize = 10_000;

/// The only part of a layer.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Mamba,
    Attention,
    Dense,
    Experts,
}

/// Pairs of an older and a newer key. The older key takes precedence.
const RENAMED: [(&str, &str); 5] = [
    ("mamba_n_groups", "n_groups"),
    ("mamba_d_conv", "conv_kernel"),
    ("mamba_dt_min", "time_step_min"),
    ("mamba_dt_limit", "time_step_limit"),
    ("mamba_conv_bias", "use_conv_bias"),
];

/// Nemotron-H, and Nemotron 3 with experts.
pub(super) fn nemotron_h(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &RENAMED.iter().fold(fields.clone(), |fields, (older, key)| match fields.get(older) {
        Some(value) => fields.without(key).with_default(key, value.clone()),
        None => fields,
    });
    let parts = parts(fields)?;
    let head_dim = fields.optional_size("attention_head_dim")?.unwrap_or(128);
    let known = fields
        .without("num_hidden_layers")
        .with_default("num_hidden_layers", parts.len().into())
        .with_default("intermediate_size", 21_504.into());
    let defaults = Defaults {
        num_kv_heads: Some(8),
        head_dim: Some(head_dim),
        max_position_embeddings: 4096,
        eps: ("layer_norm_epsilon", 1e-5),
        activation: ("mlp_hidden_act", "relu2"),
        ..LLAMA
    };
    let mut config = base::read(&known, &defaults)?;
    config.attention.biases.as_found = true;
    config.feed_forward.bias = flag(fields, "mlp_bias", false)?;
    config.feed_forward.input = FeedForwardInput::Plain;
    config.block = SINGLE_PART_BLOCK;
    config.tensors.renamed = BACKBONE_NAMES;
    let mamba = MixerKind::Mamba2(mamba(fields)?);
    for (layer, part) in config.layers.iter_mut().zip(&parts) {
        shape(layer, *part, mamba);
    }
    if !parts.contains(&Part::Experts) {
        return Ok(config);
    }
    let experts = experts(fields, &config)?;
    Ok(mixtures::sparse(config, experts, |layer| parts[layer] == Part::Experts))
}

/// Reduces a layer with a mixer and a feed-forward block to one part. No layer has rope: positions come only from Mamba-2.
fn shape(layer: &mut LayerConfig, part: Part, mamba: MixerKind) {
    layer.rope = None;
    layer.feeds_forward = matches!(part, Part::Dense | Part::Experts);
    layer.mixer = match part {
        Part::Mamba => mamba,
        Part::Attention => MixerKind::Attention,
        Part::Dense | Part::Experts => MixerKind::None,
    };
}

/// Reads the part of each layer, from a list of names or a text of one character per layer.
fn parts(fields: &Fields) -> Result<Vec<Part>> {
    let key = ["layers_block_type", "layer_types", "hybrid_override_pattern"]
        .into_iter()
        .find(|key| fields.has(key))
        .ok_or_else(|| fields.error("hybrid_override_pattern", "is missing, and so is layers_block_type"))?;
    let names: Vec<String> = match fields.get(key).and_then(serde_json::Value::as_str) {
        Some(pattern) => pattern.chars().map(String::from).collect(),
        None => fields.strings(key)?,
    };
    if names.is_empty() || names.len() > MAX_LAYERS {
        return Err(
            fields.error(key, format_args!("has {} layers; it must have 1 to {MAX_LAYERS}", names.len()))
        );
    }
    let part = |(index, name): (usize, &String)| match name.as_str() {
        "M" | "mamba" | "linear_attention" => Ok(Part::Mamba),
        "*" | "attention" | "full_attention" => Ok(Part::Attention),
        "-" | "mlp" => Ok(Part::Dense),
        "E" | "moe" => Ok(Part::Experts),
        other => {
            let message = format_args!(
                "has {other:?} at {index}; supported are M, *, - and E, or linear_attention, full_attention, mlp and moe"
            );
            Err(fields.error(key, message))
        }
    };
    names.iter().enumerate().map(part).collect()
}

fn mamba(fields: &Fields) -> Result<Mamba2Config> {
    let size = |key: &str, usual: usize| Ok::<_, crate::Error>(fields.optional_size(key)?.unwrap_or(usual));
    let [least, most] = time_step_limit(fields)?;
    let floor = fields.optional_number("time_step_min")?.unwrap_or(0.001) as f32;
    if floor > most {
        return Err(fields.error("time_step_min", "is above the upper limit of time_step_limit"));
    }
    let mamba = Mamba2Config {
        num_heads: size("mamba_num_heads", 128)?,
        head_dim: size("mamba_head_dim", 64)?,
        state_size: size("ssm_state_size", 128)?,
        n_groups: size("n_groups", 8)?,
        group_ranks: 1,
        conv_kernel: size("conv_kernel", 4)?,
        conv_bias: flag(fields, "use_conv_bias", true)?,
        // The references read different keys.
        biases: None,
        activation: activation(fields, "mamba_hidden_act")?,
        // transformers reads only the minimum, mlx-lm only the limits.
        time_step_limit: [least.max(floor), most],
        norm: GatedNorm::AfterGate,
        multipliers: None,
    };
    check(fields, &mamba, ["n_groups", "conv_kernel", "mamba_num_heads"])?;
    Ok(mamba)
}

/// Reads experts without gates, in a narrower space in some models, and a shared expert.
fn experts(fields: &Fields, config: &DecoderConfig) -> Result<MoeConfig> {
    let size = |key: &str| Ok::<_, crate::Error>(fields.optional_size(key)?.unwrap_or(7688));
    let usual = routed::RoutingDefaults {
        num_experts: 8,
        num_experts_per_tok: 2,
        moe_intermediate_size: 7688,
        n_shared_experts: 1,
        first_k_dense_replace: 0,
        norm_topk_prob: true,
    };
    let experts = routed::corrected_experts(fields, &usual)?;
    let bias = config.feed_forward.bias;
    Ok(MoeConfig {
        intermediate_size: size("moe_intermediate_size")?,
        latent: fields
            .optional_size("moe_latent_size")?
            .map(|moe_latent_size| LatentExpertsConfig { moe_latent_size, bias }),
        shared: Some(SharedExpertConfig {
            input: FeedForwardInput::Plain,
            bias,
            ..SharedExpertConfig::gated("shared_experts", size("moe_shared_expert_intermediate_size")?)
        }),
        activation: ExpertActivation::Plain(config.feed_forward.activation),
        tensors: ExpertTensors::Plain,
        ..experts
    })
}
