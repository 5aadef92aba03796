//! Families with Mamba-2 layers, most of which also have layers with attention.

use serde_json::Value;

use super::base::{self, Defaults, LLAMA, flag};
use super::hybrid::mix;
use super::{layers, llama, mixtures};
use crate::config::Fields;
use crate::error::Result;
use crate::model::activation::Activation;
use crate::model::attention_beside_mamba2::BesideMamba2Config;
use crate::model::config::{BlockConfig, DecoderConfig};
use crate::model::feed_forward::FeedForwardInput;
use crate::model::head::LogitScale;
use crate::model::mamba2::{GatedNorm, Mamba2Config};
use crate::model::mixer::MixerKind;

/// The name of a Mamba-2 layer in config.json, and the older names of both types of layers.
const LINEAR: &str = "linear_attention";
const MAMBA: &str = "mamba";
const ATTENTION: &str = "attention";

/// Granite 4: Granite with Mamba-2 in most layers, and experts in some models.
pub(super) fn granitemoehybrid(fields: &Fields) -> Result<DecoderConfig> {
    let sparse =
        !fields.is_null("num_local_experts") && fields.optional_count("num_local_experts")? != Some(0);
    let shared = fields.optional_size("shared_intermediate_size")?.unwrap_or(1024);
    let mut config = llama::granite(&fields.without("mlp_bias"))?;
    let rope = fields.optional_text("position_embedding_type")? == Some("rope");
    config.layers.iter_mut().for_each(|layer| layer.rope = layer.rope.take().filter(|_| rope));
    let mamba = expanded(fields, None)?;
    let kinds = fields.strings("layer_types")?;
    let kinds = if kinds.is_empty() { fields.strings("layers_block_type")? } else { kinds };
    let kinds: Vec<Value> = kinds.iter().map(|kind| current_name(kind).into()).collect();
    let named = fields.without("layer_types").with_default("layer_types", kinds.into());
    let is_linear = layers::of_kind(&named, config.layers.len(), LINEAR, |_| true)?;
    mix(&mut config, &is_linear, MixerKind::Mamba2(mamba));
    if !sparse {
        config.feed_forward.intermediate_size = shared;
        config.feed_forward.input = FeedForwardInput::GatedInOne;
        config.tensors.renamed = &[
            (".mlp.gate_up_proj", ".shared_mlp.input_linear"),
            (".mlp.down_proj", ".shared_mlp.output_linear"),
        ];
        return Ok(config);
    }
    let experts = mixtures::granite_experts(fields, &config, Some(shared))?;
    config.tensors = mixtures::GRANITE_TENSORS;
    Ok(mixtures::sparse(config, experts, |_| true))
}

/// Returns the current name of a type of layer.
fn current_name(kind: &str) -> &str {
    match kind {
        MAMBA => LINEAR,
        ATTENTION => layers::FULL,
        other => other,
    }
}

/// Falcon-H1: attention and Mamba-2 in parallel in every layer, and factors of nearly all inputs and outputs.
pub(super) fn falcon_h1(fields: &Fields) -> Result<DecoderConfig> {
    let defaults = Defaults {
        num_kv_heads: Some(8),
        max_position_embeddings: 8192,
        eps: ("rms_norm_eps", 1e-5),
        ..LLAMA
    };
    let mut config = base::with_biases(fields, &defaults)?;
    let factor = |key: &str| Ok::<_, crate::Error>(base::positive(fields, key, 1.0)? as f32);
    config.embedding_scale = Some(factor("embedding_multiplier")?);
    config.head.scale = Some(LogitScale::Times(factor("lm_head_multiplier")?));
    config.feed_forward.multipliers = factors(fields, "mlp_multipliers")?;
    // The factor of keys is part of the scale of scores.
    config.attention.scale *= factor("key_multiplier")?;
    let mut mamba = expanded(fields, fields.optional_size("mamba_d_ssm")?.or(usual_width(fields)))?;
    mamba.biases = Some([flag(fields, "mamba_proj_bias", false)?, flag(fields, "projectors_bias", false)?]);
    mamba.multipliers = factors(fields, "ssm_multipliers")?;
    mamba.norm = match (flag(fields, "mamba_rms_norm", false)?, flag(fields, "mamba_norm_before_gate", true)?)
    {
        (false, _) => GatedNorm::None,
        (true, true) => GatedNorm::BeforeGate,
        (true, false) => GatedNorm::AfterGate,
    };
    let both = BesideMamba2Config {
        mamba,
        attention_in_multiplier: factor("attention_in_multiplier")?,
        attention_out_multiplier: factor("attention_out_multiplier")?,
        ssm_in_multiplier: factor("ssm_in_multiplier")?,
        ssm_out_multiplier: factor("ssm_out_multiplier")?,
    };
    config.layers.iter_mut().for_each(|layer| layer.mixer = MixerKind::BesideMamba2(both));
    config.block.pre_feedforward_norm = Some("pre_ff_layernorm");
    config.tensors.renamed = &[(".mlp.", ".feed_forward."), ("model.norm", "model.final_layernorm")];
    Ok(config)
}

/// Returns the default width of Falcon-H1's Mamba-2. `None` for `null`, where it depends on the residual stream.
fn usual_width(fields: &Fields) -> Option<usize> {
    (!fields.is_null("mamba_d_ssm")).then_some(1024)
}

/// Reads a list of `COUNT` factors; `None` if config.json has none.
fn factors<const COUNT: usize>(fields: &Fields, key: &str) -> Result<Option<[f32; COUNT]>> {
    if !fields.has(key) {
        return Ok(None);
    }
    let numbers: Vec<f32> = fields.numbers(key)?.into_iter().map(|number| number as f32).collect();
    match <[f32; COUNT]>::try_from(numbers) {
        Ok(factors) if factors.iter().all(|factor| factor.is_finite()) => Ok(Some(factors)),
        _ => Err(fields.error(key, format_args!("must be a list of {COUNT} numbers"))),
    }
}

/// Reads Mamba-2 with the keys of Granite and Falcon-H1. Without a width, `mamba_expand` is its ratio to the residual stream.
fn expanded(fields: &Fields, width: Option<usize>) -> Result<Mamba2Config> {
    let size = |key: &str, usual: usize| Ok::<_, crate::Error>(fields.optional_size(key)?.unwrap_or(usual));
    let width = match width {
        Some(width) => width,
        None => size("mamba_expand", 2)?.saturating_mul(fields.size("hidden_size")?),
    };
    let num_heads = size("mamba_n_heads", 128)?;
    let automatic = matches!(fields.get("mamba_d_head"), Some(Value::String(text)) if text == "auto");
    let head_dim = if automatic { None } else { fields.optional_size("mamba_d_head")? };
    let head_dim = head_dim.unwrap_or((width / num_heads).max(1));
    if num_heads.saturating_mul(head_dim) != width {
        let message = format_args!("is {num_heads}; times mamba_d_head ({head_dim}) it must be {width}");
        return Err(fields.error("mamba_n_heads", message));
    }
    let bias = flag(fields, "mamba_proj_bias", false)?;
    let mamba = Mamba2Config {
        num_heads,
        head_dim,
        state_size: size("mamba_d_state", 256)?,
        n_groups: size("mamba_n_groups", 1)?,
        group_ranks: 1,
        conv_kernel: size("mamba_d_conv", 4)?,
        conv_bias: flag(fields, "mamba_conv_bias", true)?,
        biases: Some([bias, bias]),
        activation: activation(fields, "hidden_act")?,
        time_step_limit: time_step_limit(fields)?,
        norm: GatedNorm::AfterGate,
        multipliers: None,
    };
    check(fields, &mamba, ["mamba_n_groups", "mamba_d_conv", "mamba_n_heads"])?;
    Ok(mamba)
}

/// Mamba-2 without attention and without feed-forward blocks.
pub(super) fn mamba2(fields: &Fields) -> Result<DecoderConfig> {
    let size = |key: &str, usual: usize| Ok::<_, crate::Error>(fields.optional_size(key)?.unwrap_or(usual));
    let bias = flag(fields, "use_bias", false)?;
    let mamba = Mamba2Config {
        num_heads: size("num_heads", 128)?,
        head_dim: size("head_dim", 64)?,
        state_size: size("state_size", 128)?,
        n_groups: size("n_groups", 8)?,
        group_ranks: 1,
        conv_kernel: size("conv_kernel", 4)?,
        conv_bias: flag(fields, "use_conv_bias", true)?,
        biases: Some([bias, bias]),
        activation: activation(fields, "hidden_act")?,
        time_step_limit: time_step_limit(fields)?,
        norm: GatedNorm::AfterGate,
        multipliers: None,
    };
    check(fields, &mamba, ["n_groups", "conv_kernel", "num_heads"])?;
    let width = size("expand", 2)?.saturating_mul(fields.size("hidden_size")?);
    if width != mamba.intermediate_size() {
        let message = format_args!("times hidden_size is {width}; it must equal num_heads times head_dim");
        return Err(fields.error("expand", message));
    }
    // There is no attention and no feed-forward block, so their sizes have no effect.
    let fields = &fields
        .without("head_dim")
        .without("num_attention_heads")
        .without("num_key_value_heads")
        .without("intermediate_size")
        .with_default("num_attention_heads", 1.into())
        .with_default("intermediate_size", 1.into());
    let defaults =
        Defaults { max_position_embeddings: UNLIMITED, eps: ("layer_norm_epsilon", 1e-5), ..LLAMA };
    let mut config = base::read(fields, &defaults)?;
    config.block = SINGLE_PART_BLOCK;
    config.tensors.renamed = BACKBONE_NAMES;
    let every = vec![true; config.layers.len()];
    mix(&mut config, &every, MixerKind::Mamba2(mamba));
    config.layers.iter_mut().for_each(|layer| layer.feeds_forward = false);
    Ok(config)
}

/// The context length of a model without one in config.json: a state of constant size has no limit.
const UNLIMITED: usize = 1 << 20;

/// Layers that have either a mixer or a feed-forward block, after one norm.
pub(super) const SINGLE_PART_BLOCK: BlockConfig =
    BlockConfig { input_norm: Some("norm"), pre_feedforward_norm: Some("norm"), ..BlockConfig::LLAMA };

/// The tensor names of a decoder whose layers have one part each.
pub(super) const BACKBONE_NAMES: &[(&str, &str)] = &[
    (".self_attn.", ".mixer."),
    (".mamba.", ".mixer."),
    (".mlp.", ".mixer."),
    ("model.embed_tokens", "backbone.embeddings"),
    ("model.norm", "backbone.norm_f"),
    ("model.layers", "backbone.layers"),
];

/// Reads the activation function after the convolution.
pub(super) fn activation(fields: &Fields, key: &str) -> Result<Activation> {
    let name = fields.optional_text(key)?.unwrap_or("silu");
    let known = Activation::named(name).filter(|it| *it != Activation::Xielu);
    known.ok_or_else(|| {
        fields.error(
            key,
            format_args!("{name:?} is not supported; supported are silu, swish, relu2 and the gelu variants"),
        )
    })
}

/// Reads the minimum and the maximum time step.
pub(super) fn time_step_limit(fields: &Fields) -> Result<[f32; 2]> {
    let limits = fields.optional_limits("time_step_limit")?.unwrap_or([0.0, f64::INFINITY]);
    Ok(limits.map(|limit| limit as f32))
}

/// Checks relations between keys that a Mamba-2 layer needs. The names are the family's keys of groups, taps and heads.
pub(super) fn check(fields: &Fields, mamba: &Mamba2Config, [groups, taps, heads]: [&str; 3]) -> Result<()> {
    if !mamba.num_heads.is_multiple_of(mamba.n_groups) {
        let message = format_args!("is {}; it must divide {heads}", mamba.n_groups);
        return Err(fields.error(groups, message));
    }
    if mamba.conv_kernel < 2 {
        return Err(fields.error(taps, "is 1; it must be at least 2"));
    }
    // Widths are products of keys. Together they must fit an i32, the type of array dimensions.
    let memory = mamba.num_heads.saturating_mul(mamba.head_dim.saturating_mul(mamba.state_size));
    let shared = mamba.n_groups.saturating_mul(mamba.state_size);
    if memory.saturating_add(shared).saturating_mul(4) > i32::MAX as usize {
        return Err(fields.error(heads, "times the sizes of a head is too large"));
    }
    Ok(())
}
