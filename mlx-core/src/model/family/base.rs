//! What most families say in the same words: a decoder like llama, from which a family changes what it does otherwise.

use serde_json::Value;

use crate::config::Fields;
use crate::error::Result;
use crate::model::activation::Activation;
use crate::model::attention::{AttentionBiases, AttentionConfig, Projections};
use crate::model::attention::{QkNormConfig, QkNormScope};
use crate::model::config::BlockConfig;
use crate::model::config::{DecoderConfig, LayerConfig};
use crate::model::feed_forward::{FeedForwardConfig, FeedForwardInput};
use crate::model::head::HeadConfig;
use crate::model::mixer::MixerKind;
use crate::model::norm::{NormConfig, NormKind};
use crate::model::rope::{MropeSection, RopeConfig, RopeDefaults};
use crate::model::tensors::TensorNames;

/// A config that claims more layers than this is damaged.
const MOST_LAYERS: usize = 10_000;

/// What holds where config.json says nothing. Where a count is `null` there, it follows from others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defaults {
    /// Key and value heads; `None` for as many as query heads.
    pub(super) num_kv_heads: Option<usize>,
    /// Dimensions of a head; `None` for the width divided by the query heads.
    pub(super) head_dim: Option<usize>,
    /// The longest sequence.
    pub(super) max_position_embeddings: usize,
    /// The key of the norms' epsilon, and its value.
    pub(super) eps: (&'static str, f64),
    /// What norms do.
    pub(super) norm: NormKind,
    /// The base of rope.
    pub(super) rope_theta: f64,
    /// The default of `partial_rotary_factor`; `None` where the whole head is rotated whatever config.json says.
    pub(super) partial_rotary_factor: Option<f64>,
    /// Whether rope pairs neighboring dims.
    pub(super) interleaved: bool,
    /// See [`RopeDefaults::has_dynamic_alpha`].
    pub(super) has_dynamic_alpha: bool,
    /// See [`RopeDefaults::mrope_section`].
    pub(super) mrope_section: Option<MropeSection>,
    /// The key of the activation, and its value.
    pub(super) activation: (&'static str, &'static str),
}

/// Llama's.
pub(super) const LLAMA: Defaults = Defaults {
    num_kv_heads: None,
    head_dim: None,
    max_position_embeddings: 2048,
    eps: ("rms_norm_eps", 1e-6),
    norm: NormKind::Rms,
    rope_theta: 10_000.0,
    partial_rotary_factor: None,
    interleaved: false,
    has_dynamic_alpha: false,
    mrope_section: None,
    activation: ("hidden_act", "silu"),
};

/// The same fields, with a family's usual section about rope where config.json has none under either of its names.
pub(super) fn with_usual_rope(fields: &Fields, usual: Value) -> Fields {
    if fields.has("rope_scaling") { fields.clone() } else { fields.with_default("rope_parameters", usual) }
}

/// A decoder like llama without biases, all of whose layers are alike.
pub(super) fn read(fields: &Fields, defaults: &Defaults) -> Result<DecoderConfig> {
    let hidden = fields.size("hidden_size")?;
    let num_heads = fields.size("num_attention_heads")?;
    let head_dim = head_dim(fields, defaults)?;
    let layer = LayerConfig {
        mixer: MixerKind::Attention,
        attention: None,
        kv_source: None,
        intermediate_size: None,
        sliding_window: None,
        rope: Some(RopeConfig::read(fields, head_dim, rope_defaults(fields, defaults)?)?),
        feeds_forward: true,
        is_moe: false,
    };
    let layers = fields.size("num_hidden_layers")?;
    if layers > MOST_LAYERS {
        let message = format_args!("is {layers}; no model has more than {MOST_LAYERS}");
        return Err(fields.error("num_hidden_layers", message));
    }
    let (key, epsilon) = defaults.eps;
    let norm =
        NormConfig { kind: defaults.norm, eps: fields.optional_positive(key)?.unwrap_or(epsilon) as f32 };
    Ok(DecoderConfig {
        vocab_size: fields.size("vocab_size")?,
        max_position_embeddings: context(fields, defaults)?,
        hidden_size: hidden,
        layers: vec![layer; layers],
        block: BlockConfig::LLAMA,
        norm,
        attention: AttentionConfig {
            num_heads,
            num_kv_heads: derived(fields, "num_key_value_heads", defaults.num_kv_heads, num_heads)?,
            head_dim,
            projections: Projections::Apart,
            biases: AttentionBiases::default(),
            norm: None,
            scale: (head_dim as f32).sqrt().recip(),
            softcap: None,
            sinks: false,
            output_gate: None,
            attention_k_eq_v: false,
            value_norm: None,
            two_way_pictures: false,
            temperature: None,
        },
        feed_forward: FeedForwardConfig {
            intermediate_size: fields.size("intermediate_size")?,
            bias: false,
            input: FeedForwardInput::Gated,
            activation: activation(fields, defaults)?,
            multipliers: None,
        },
        experts: None,
        per_layer_input: None,
        embedding_scale: None,
        draft_layers: 0,
        head: HeadConfig {
            // Unless config.json says otherwise, the checkpoint tells: a head of its own makes itself known.
            tie_word_embeddings: flag(fields, "tie_word_embeddings", true)?,
            is_missing: false,
            bias: false,
            scale: None,
            softcap: None,
        },
        tensors: TensorNames::LLAMA,
    })
}

/// The same, with `attention_bias` for all four projections of attention and `mlp_bias` for the others.
pub(super) fn with_biases(fields: &Fields, defaults: &Defaults) -> Result<DecoderConfig> {
    let mut config = read(fields, defaults)?;
    let bias = flag(fields, "attention_bias", false)?;
    (config.attention.biases.qkv, config.attention.biases.output) = (bias, bias);
    config.feed_forward.bias = flag(fields, "mlp_bias", false)?;
    Ok(config)
}

/// Norms of each query and key head before rope, like the other norms.
pub(super) fn normalize_heads(config: &mut DecoderConfig, scope: QkNormScope) {
    config.attention.norm = Some(QkNormConfig { scope, after_rope: false, norm: config.norm });
}

/// Dimensions of a head.
pub(super) fn head_dim(fields: &Fields, defaults: &Defaults) -> Result<usize> {
    let (hidden, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    match derived(fields, "head_dim", defaults.head_dim, hidden / heads)? {
        0 => Err(fields.error("num_attention_heads", "is above hidden_size and head_dim is not given")),
        size => Ok(size),
    }
}

/// What holds for rope where config.json says nothing.
pub(super) fn rope_defaults(fields: &Fields, defaults: &Defaults) -> Result<RopeDefaults> {
    Ok(RopeDefaults {
        theta: defaults.rope_theta,
        partial_rotary_factor: defaults.partial_rotary_factor,
        interleaved: flag(fields, "rope_traditional", defaults.interleaved)?,
        max_position_embeddings: context(fields, defaults)?,
        original_max_position_embeddings: None,
        has_dynamic_alpha: defaults.has_dynamic_alpha,
        mrope_section: defaults.mrope_section,
    })
}

fn context(fields: &Fields, defaults: &Defaults) -> Result<usize> {
    Ok(fields.optional_size("max_position_embeddings")?.unwrap_or(defaults.max_position_embeddings))
}

/// The activation by its name, which must be one that is known.
fn activation(fields: &Fields, defaults: &Defaults) -> Result<Activation> {
    let (key, usual) = defaults.activation;
    let name = fields.optional_text(key)?.unwrap_or(usual);
    Activation::named(name).ok_or_else(|| {
        let known = "silu, swish, gelu, gelu_python, gelu_new, gelu_fast, gelu_accurate, gelu_pytorch_tanh, gelu_python_tanh, relu2 and xielu";
        fields.error(key, format_args!("{name:?} is not supported; supported are {known}"))
    })
}

/// `true` or `false`.
pub(super) fn flag(fields: &Fields, key: &str, usual: bool) -> Result<bool> {
    Ok(fields.optional_flag(key)?.unwrap_or(usual))
}

/// A size that `usual` stands in for if it is absent, and `otherwise` if it is `null` or there is nothing usual.
fn derived(fields: &Fields, key: &str, usual: Option<usize>, otherwise: usize) -> Result<usize> {
    let usual = if fields.is_null(key) { None } else { usual };
    Ok(fields.optional_size(key)?.or(usual).unwrap_or(otherwise))
}

/// A number that `usual` stands in for if it is absent; `None` if it is `null`.
pub(super) fn nullable(fields: &Fields, key: &str, usual: Option<f64>) -> Result<Option<f32>> {
    let usual = if fields.is_null(key) { None } else { usual };
    Ok(fields.optional_positive(key)?.or(usual).map(|number| number as f32))
}

/// A number above 0.
pub(super) fn positive(fields: &Fields, key: &str, usual: f64) -> Result<f64> {
    Ok(fields.optional_positive(key)?.unwrap_or(usual))
}

/// Refuses a flag that asks for what no decoder here does.
pub(super) fn refuse(fields: &Fields, key: &str) -> Result<()> {
    if flag(fields, key, false)? {
        return Err(fields.error(key, "is true, which is not supported"));
    }
    Ok(())
}

/// The section about text in the config of a model that also sees. What the whole says about the head holds where the section is
/// silent.
pub(super) fn text_section(fields: &Fields) -> Result<Fields> {
    let text = fields.section("text_config")?.ok_or_else(|| fields.error("text_config", "is missing"))?;
    match fields.optional_flag("tie_word_embeddings")? {
        Some(tied) => Ok(text.with_default("tie_word_embeddings", tied.into())),
        None => Ok(text),
    }
}

/// The same of a model whose older configs have the keys about text beside the others.
pub(super) fn text_section_or_all(fields: &Fields) -> Result<Fields> {
    if fields.has("text_config") { text_section(fields) } else { Ok(fields.clone()) }
}
