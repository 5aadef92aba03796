//! The common part of most families: a decoder like llama, which each family changes where it differs.

use serde_json::Value;

use crate::config::Fields;
use crate::error::Result;
use crate::model::activation::Activation;
use crate::model::attention::AttentionConfig;
use crate::model::attention::{QkNormConfig, QkNormScope};
use crate::model::config::BlockConfig;
use crate::model::config::{DecoderConfig, LayerConfig};
use crate::model::feed_forward::{FeedForwardConfig, FeedForwardInput};
use crate::model::head::HeadConfig;
use crate::model::mixer::MixerKind;
use crate::model::norm::{NormConfig, NormKind};
use crate::model::rope::{MropeSection, RopeConfig, RopeDefaults};
use crate::model::tensors::TensorNames;

/// The maximum number of layers; a config with more is damaged.
const MAX_LAYERS: usize = 10_000;

/// The defaults of a family for keys that config.json lacks. A count that is `null` is derived from other keys.
#[derive(Debug, Clone, Copy)]
pub(in crate::model) struct Defaults {
    /// The number of key and value heads; `None` for the number of query heads.
    pub(in crate::model) num_kv_heads: Option<usize>,
    /// The dimensions of a head; `None` for the width divided by the number of query heads.
    pub(in crate::model) head_dim: Option<usize>,
    /// The longest sequence, in tokens.
    pub(in crate::model) max_position_embeddings: usize,
    /// The key of the norms' epsilon, and its default.
    pub(in crate::model) eps: (&'static str, f64),
    /// The formula of norms.
    pub(in crate::model) norm: NormKind,
    /// The theta of rope.
    pub(in crate::model) rope_theta: f64,
    /// The default of `partial_rotary_factor`; `None` if the whole head is rotated regardless of config.json.
    pub(in crate::model) partial_rotary_factor: Option<f64>,
    /// True if rope pairs adjacent dimensions.
    pub(in crate::model) interleaved: bool,
    /// See [`RopeDefaults::has_dynamic_alpha`].
    pub(in crate::model) has_dynamic_alpha: bool,
    /// See [`RopeDefaults::mrope_section`].
    pub(in crate::model) mrope_section: Option<MropeSection>,
    /// The key of the activation, and its default.
    pub(in crate::model) activation: (&'static str, &'static str),
}

/// The defaults of llama.
pub(in crate::model) const LLAMA: Defaults = Defaults {
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

/// Adds a family's default section about rope to the fields, if config.json has none under either of its names.
pub(super) fn with_default_rope(fields: &Fields, usual: Value) -> Fields {
    if fields.has("rope_scaling") { fields.clone() } else { fields.with_default("rope_parameters", usual) }
}

/// Reads a decoder like llama, without biases and with equal layers.
pub(in crate::model) fn read(fields: &Fields, defaults: &Defaults) -> Result<DecoderConfig> {
    let hidden = fields.size("hidden_size")?;
    let num_heads = fields.size("num_attention_heads")?;
    let num_kv_heads = derived(fields, "num_key_value_heads", defaults.num_kv_heads, num_heads)?;
    let head_dim = head_dim(fields, defaults)?;
    let layer = LayerConfig {
        mixer: MixerKind::Attention,
        attention: None,
        kv_source: None,
        intermediate_size: None,
        activation_sparsity: None,
        sliding_window: None,
        rope: Some(RopeConfig::read(fields, head_dim, rope_defaults(fields, defaults)?)?),
        feeds_forward: true,
        is_moe: false,
    };
    let layers = fields.size("num_hidden_layers")?;
    if layers > MAX_LAYERS {
        let message = format_args!("is {layers}; no model has more than {MAX_LAYERS}");
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
        attention: AttentionConfig::plain(num_heads, num_kv_heads, head_dim),
        feed_forward: FeedForwardConfig {
            intermediate_size: fields.size("intermediate_size")?,
            bias: false,
            input: FeedForwardInput::Gated,
            activation: activation(fields, defaults.activation)?,
            multipliers: None,
            activation_sparsity: None,
        },
        experts: None,
        per_layer_input: None,
        altup: None,
        embedding_scale: None,
        embedding_norm: None,
        last_norm: None,
        draft_layers: 0,
        head: HeadConfig {
            // If config.json has no flag, the checkpoint decides: a separate head is found among its tensors.
            tie_word_embeddings: flag(fields, "tie_word_embeddings", true)?,
            is_missing: false,
            bias: false,
            scale: None,
            softcap: None,
        },
        tensors: TensorNames::LLAMA,
    })
}

/// Like [`read`], but with `attention_bias` for all four projections of attention and `mlp_bias` for the others.
pub(super) fn with_biases(fields: &Fields, defaults: &Defaults) -> Result<DecoderConfig> {
    let mut config = read(fields, defaults)?;
    let bias = flag(fields, "attention_bias", false)?;
    (config.attention.biases.qkv, config.attention.biases.output) = (bias, bias);
    config.feed_forward.bias = flag(fields, "mlp_bias", false)?;
    Ok(config)
}

/// Adds norms of each query and key head before rope, with the config of the other norms.
pub(super) fn normalize_heads(config: &mut DecoderConfig, scope: QkNormScope) {
    config.attention.norm = Some(QkNormConfig { scope, after_rope: false, norm: config.norm });
}

/// Returns the dimensions of a head.
pub(super) fn head_dim(fields: &Fields, defaults: &Defaults) -> Result<usize> {
    let (hidden, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    match derived(fields, "head_dim", defaults.head_dim, hidden / heads)? {
        0 => Err(fields.error("num_attention_heads", "is above hidden_size and head_dim is not given")),
        size => Ok(size),
    }
}

/// Returns the defaults of rope for keys that config.json lacks.
pub(in crate::model) fn rope_defaults(fields: &Fields, defaults: &Defaults) -> Result<RopeDefaults> {
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

/// Reads the activation by its name, which must be known.
pub(in crate::model) fn activation(fields: &Fields, (key, usual): (&str, &str)) -> Result<Activation> {
    let name = fields.optional_text(key)?.unwrap_or(usual);
    Activation::named(name).ok_or_else(|| {
        let known = "silu, swish, gelu, gelu_python, gelu_new, gelu_fast, gelu_accurate, gelu_pytorch_tanh, gelu_python_tanh, relu2 and xielu";
        fields.error(key, format_args!("{name:?} is not supported; supported are {known}"))
    })
}

/// Reads a flag, which is `usual` if it is absent.
pub(in crate::model) fn flag(fields: &Fields, key: &str, usual: bool) -> Result<bool> {
    Ok(fields.optional_flag(key)?.unwrap_or(usual))
}

/// Reads a size. It is `usual` if it is absent, and `otherwise` if it is `null` or there is no usual value.
fn derived(fields: &Fields, key: &str, usual: Option<usize>, otherwise: usize) -> Result<usize> {
    let usual = if fields.is_null(key) { None } else { usual };
    Ok(fields.optional_size(key)?.or(usual).unwrap_or(otherwise))
}

/// Reads a number. It is `usual` if it is absent, and `None` if it is `null`.
pub(super) fn nullable(fields: &Fields, key: &str, usual: Option<f64>) -> Result<Option<f32>> {
    let usual = if fields.is_null(key) { None } else { usual };
    Ok(fields.optional_positive(key)?.or(usual).map(|number| number as f32))
}

/// Reads a number above 0, which is `usual` if it is absent.
pub(super) fn positive(fields: &Fields, key: &str, usual: f64) -> Result<f64> {
    Ok(fields.optional_positive(key)?.unwrap_or(usual))
}

/// Rejects a flag that enables an unsupported feature.
pub(in crate::model) fn refuse(fields: &Fields, key: &str) -> Result<()> {
    if flag(fields, key, false)? {
        return Err(fields.error(key, "is true, which is not supported"));
    }
    Ok(())
}

/// Returns the text section of the config of a multimodal model. If the section has no `tie_word_embeddings`, the value of the whole
/// config applies.
pub(super) fn text_section(fields: &Fields) -> Result<Fields> {
    let text = fields.section("text_config")?.ok_or_else(|| fields.error("text_config", "is missing"))?;
    match fields.optional_flag("tie_word_embeddings")? {
        Some(tied) => Ok(text.with_default("tie_word_embeddings", tied.into())),
        None => Ok(text),
    }
}

/// Like [`text_section`], for a model whose older configs have the text keys at the top level.
pub(super) fn text_section_or_all(fields: &Fields) -> Result<Fields> {
    if fields.has("text_config") { text_section(fields) } else { Ok(fields.clone()) }
}
