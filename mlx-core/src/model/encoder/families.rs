//! Encoder families as data: one function per family reads config.json into an [`EncoderConfig`]. transformers' configuration classes are
//! the reference for names and defaults.

use serde_json::{Value, json};

use super::classifier_config;
use super::config::{EncoderConfig, PositionTable, RelativeBias, read_activation};
use super::names::EncoderNames;
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::{AttentionBiases, AttentionConfig, Projections};
use crate::model::config::{BlockConfig, DecoderConfig, LayerConfig};
use crate::model::feed_forward::{FeedForwardConfig, FeedForwardInput};
use crate::model::head::HeadConfig;
use crate::model::mixer::MixerKind;
use crate::model::norm::{NormConfig, NormKind};
use crate::model::rope::{RopeConfig, RopeDefaults};
use crate::model::tensors::TensorNames;

/// The maximum number of layers; a config with more is damaged.
const MAX_LAYERS: usize = 10_000;

/// Reads the config of a family.
pub(super) type Read = fn(&Fields) -> Result<EncoderConfig>;

/// The families: `model_type` of config.json, its aliases, and the function that reads the config.
pub(super) const FAMILIES: [(&[&str], Read); 6] = [
    (&["bert"], bert),
    (&["distilbert"], distilbert),
    (&["modernbert"], modernbert),
    (&["mpnet"], mpnet),
    (&["nomic_bert"], nomic_bert),
    (&["roberta", "xlm-roberta", "camembert"], roberta),
];

/// The norms of BERT, after the sums.
const NORMS_AFTER: BlockConfig = BlockConfig {
    input_norm: None,
    post_attention_norm: Some("post_attention_layernorm"),
    pre_feedforward_norm: None,
    post_feedforward_norm: Some("post_feedforward_layernorm"),
    ..BlockConfig::LLAMA
};

/// Adds defaults for keys that config.json lacks.
fn with_defaults(fields: &Fields, defaults: &Value) -> Fields {
    let defaults = defaults.as_object().into_iter().flatten();
    defaults.fold(fields.clone(), |fields, (key, value)| fields.with_default(key, value.clone()))
}

/// Reads BERT, under the names of its keys: layer norms after the sums, learned positions from 0, token types.
pub(super) fn bert(fields: &Fields) -> Result<EncoderConfig> {
    let fields = &with_defaults(
        fields,
        &json!({"vocab_size": 30_522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "intermediate_size": 3072, "hidden_act": "gelu", "max_position_embeddings": 512, "type_vocab_size": 2,
            "layer_norm_eps": 1e-12}),
    );
    for key in ["is_decoder", "add_cross_attention"] {
        if fields.optional_flag(key)? == Some(true) {
            return Err(fields.error(key, "is true; supported are encoders"));
        }
    }
    if let Some(other) = fields.optional_text("position_embedding_type")?.filter(|kind| *kind != "absolute") {
        return Err(fields.error("position_embedding_type", format!("is {other:?}; supported is absolute")));
    }
    let eps = fields.positive("layer_norm_eps")?;
    let stack = stack(fields, NormConfig { kind: NormKind::LayerWithBias, eps: eps as f32 }, "hidden_act")?;
    Ok(EncoderConfig {
        positions: Some(PositionTable { rows: stack.max_position_embeddings, first: 0 }),
        token_types: fields.optional_count("type_vocab_size")?.unwrap_or(0),
        embedding_norm: true,
        norm_after_sum: true,
        first_layer_is_normalized: true,
        last_norm: false,
        relative_bias: None,
        head: classifier_config::bert(fields)?,
        names: EncoderNames::BERT,
        stack,
    })
}

/// RoBERTa: positions count from the id of padding, plus one.
fn roberta(fields: &Fields) -> Result<EncoderConfig> {
    let fields = &with_defaults(
        fields,
        &json!({"vocab_size": 50_265, "pad_token_id": 1, "layer_norm_eps": 1e-5, "max_position_embeddings": 514}),
    );
    let config = bert(fields)?;
    let head = classifier_config::two_layers(fields)?;
    Ok(EncoderConfig { head, names: EncoderNames::ROBERTA, ..after_padding(fields, config)? })
}

/// MPNet: like RoBERTa, with a bias of scores by distance that all layers share, and without token types.
fn mpnet(fields: &Fields) -> Result<EncoderConfig> {
    let fields = &with_defaults(
        fields,
        &json!({"vocab_size": 30_527, "pad_token_id": 1, "type_vocab_size": 0, "relative_attention_num_buckets": 32}),
    );
    let fields = &fields.without("type_vocab_size").with_default("type_vocab_size", 0.into());
    let buckets = fields.size("relative_attention_num_buckets")?;
    if buckets != 32 {
        let message = format!("is {buckets}; supported is 32");
        return Err(fields.error("relative_attention_num_buckets", message));
    }
    let config = bert(fields)?;
    Ok(EncoderConfig {
        relative_bias: Some(RelativeBias { buckets, max_distance: 128 }),
        head: classifier_config::two_layers(fields)?,
        names: EncoderNames::MPNET,
        ..after_padding(fields, config)?
    })
}

/// DistilBERT: BERT under other names, without token types.
fn distilbert(fields: &Fields) -> Result<EncoderConfig> {
    let keys = [
        ("dim", "hidden_size", 768),
        ("n_layers", "num_hidden_layers", 6),
        ("n_heads", "num_attention_heads", 12),
        ("hidden_dim", "intermediate_size", 3072),
    ];
    let mut renamed = fields.without("type_vocab_size").with_default("type_vocab_size", 0.into());
    for (theirs, ours, usual) in keys {
        let value = fields.optional_size(theirs)?.unwrap_or(usual);
        renamed = renamed.with_default(ours, value.into());
    }
    let activation = fields.optional_text("activation")?.unwrap_or("gelu");
    let config = bert(&renamed.with_default("hidden_act", activation.into()))?;
    Ok(EncoderConfig {
        head: classifier_config::distilbert(fields)?,
        names: EncoderNames::DISTILBERT,
        ..config
    })
}

/// Nomic BERT: rope, a gated feed-forward block, no biases. The older keys are those of GPT-2.
fn nomic_bert(fields: &Fields) -> Result<EncoderConfig> {
    let mut renamed = fields.clone();
    for (theirs, ours) in [
        ("n_embd", "hidden_size"),
        ("n_layer", "num_hidden_layers"),
        ("n_head", "num_attention_heads"),
        ("n_inner", "intermediate_size"),
        ("n_positions", "max_position_embeddings"),
        ("layer_norm_epsilon", "layer_norm_eps"),
        ("rotary_emb_base", "rope_theta"),
    ] {
        if let Some(value) = fields.get(theirs) {
            renamed = renamed.with_default(ours, value.clone());
        }
    }
    expect_plain_nomic(fields)?;
    let activation = match fields.optional_text("activation_function")? {
        None | Some("swiglu") => "silu",
        Some("geglu") => "gelu",
        Some(other) => {
            let message = format!("is {other:?}; supported are swiglu and geglu");
            return Err(fields.error("activation_function", message));
        }
    };
    let fields = &with_defaults(
        &renamed,
        &json!({"vocab_size": 30_528, "hidden_act": activation, "max_position_embeddings": 2048}),
    );
    let mut config = bert(fields)?;
    // Beyond the length of its training, a factor scales the frequencies of such a model.
    if fields.has("rotary_scaling_factor")
        && let Some(trained) = fields.optional_size("max_trained_positions")?
    {
        let stack = &mut config.stack;
        stack.max_position_embeddings = stack.max_position_embeddings.min(trained);
    }
    set_rope(fields, &mut config, 1000.0)?;
    config.stack.feed_forward.input = FeedForwardInput::Gated;
    config.stack.feed_forward.bias = false;
    config.stack.attention.biases = AttentionBiases::default();
    Ok(EncoderConfig { positions: None, head: None, names: EncoderNames::NOMIC, ..config })
}

/// Rejects variants of Nomic BERT whose vectors would differ.
fn expect_plain_nomic(fields: &Fields) -> Result<()> {
    for key in
        ["qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "use_rms_norm", "rotary_emb_interleaved"]
    {
        if fields.optional_flag(key)? == Some(true) {
            return Err(fields.error(key, "is true, which is not supported"));
        }
    }
    if let Some(part) = fields.optional_number("rotary_emb_fraction")?.filter(|part| *part < 1.0) {
        return Err(fields.error("rotary_emb_fraction", format!("is {part}; supported is 1.0")));
    }
    match fields.optional_count("num_experts")? {
        Some(experts) if experts > 1 => {
            Err(fields.error("num_experts", format!("is {experts}; encoders with experts are not supported")))
        }
        _ => Ok(()),
    }
}

/// ModernBERT (Warner et al., 2024, arXiv:2412.13663): norms before the blocks, rope with two thetas, windows on both sides in most layers.
fn modernbert(fields: &Fields) -> Result<EncoderConfig> {
    let activation = fields.optional_text("hidden_activation")?.unwrap_or("gelu");
    let eps = fields.optional_positive("norm_eps")?.unwrap_or(1e-5);
    let fields = &with_defaults(
        fields,
        &json!({"vocab_size": 50_368, "hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12,
            "intermediate_size": 1152, "hidden_act": activation, "max_position_embeddings": 8192,
            "local_attention": 128, "global_attn_every_n_layers": 3}),
    );
    let flag = |key| fields.optional_flag(key).map(|flag| flag.unwrap_or(false));
    let kind = if flag("norm_bias")? { NormKind::LayerWithBias } else { NormKind::Layer };
    let mut stack = stack(fields, NormConfig { kind, eps: eps as f32 }, "hidden_act")?;
    stack.block = BlockConfig::LLAMA;
    let bias = flag("attention_bias")?;
    stack.attention.biases = AttentionBiases { qkv: bias, output: bias, as_found: false };
    stack.attention.projections = Projections::InOne;
    stack.feed_forward.input = FeedForwardInput::GatedInOne;
    stack.feed_forward.bias = flag("mlp_bias")?;
    let period = fields.size("global_attn_every_n_layers")?;
    let kinds = fields.strings("layer_types")?;
    let (global, local) = two_ropes(fields, &stack)?;
    let window = fields.size("local_attention")? / 2 + 1;
    let count = stack.layers.len();
    if !kinds.is_empty() && kinds.len() != count {
        let message = format!("has {} entries; there are {count} layers", kinds.len());
        return Err(fields.error("layer_types", message));
    }
    for (index, layer) in stack.layers.iter_mut().enumerate() {
        let slides = match kinds.get(index).map(String::as_str) {
            None => !index.is_multiple_of(period),
            Some("sliding_attention") => true,
            Some("full_attention") => false,
            Some(other) => {
                let message = format!("has {other:?}; supported are full_attention and sliding_attention");
                return Err(fields.error("layer_types", message));
            }
        };
        layer.sliding_window = slides.then_some(window);
        layer.rope = Some(if slides { local.clone() } else { global.clone() });
    }
    Ok(EncoderConfig {
        positions: None,
        token_types: 0,
        embedding_norm: true,
        norm_after_sum: false,
        first_layer_is_normalized: false,
        last_norm: true,
        relative_bias: None,
        head: classifier_config::modernbert(fields)?,
        names: EncoderNames::MODERNBERT,
        stack,
    })
}

/// Returns the ropes of layers without a window and of layers with one.
fn two_ropes(fields: &Fields, stack: &DecoderConfig) -> Result<(RopeConfig, RopeConfig)> {
    let rope = |kind: &str, key: &str, usual: f64| {
        let theta = fields.optional_positive(key)?.unwrap_or(usual);
        RopeConfig::of_kind(fields, kind, stack.attention.head_dim, rope_defaults(stack, theta))
    };
    Ok((
        rope("full_attention", "global_rope_theta", 160_000.0)?,
        rope("sliding_attention", "local_rope_theta", 10_000.0)?,
    ))
}

/// Rotates the whole head in every layer.
fn set_rope(fields: &Fields, config: &mut EncoderConfig, theta: f64) -> Result<()> {
    let stack = &mut config.stack;
    let rope = RopeConfig::read(fields, stack.attention.head_dim, rope_defaults(stack, theta))?;
    for layer in &mut stack.layers {
        layer.rope = Some(rope.clone());
    }
    Ok(())
}

fn rope_defaults(stack: &DecoderConfig, theta: f64) -> RopeDefaults {
    RopeDefaults {
        theta,
        partial_rotary_factor: None,
        interleaved: false,
        max_position_embeddings: stack.max_position_embeddings,
        original_max_position_embeddings: None,
        has_dynamic_alpha: false,
        mrope_section: None,
    }
}

/// Makes the rows of positions begin after the row of the padding token.
fn after_padding(fields: &Fields, mut config: EncoderConfig) -> Result<EncoderConfig> {
    let first = fields.optional_count("pad_token_id")?.unwrap_or(1) + 1;
    let rows = config.stack.max_position_embeddings;
    if first >= rows {
        return Err(fields.error("max_position_embeddings", format!("is {rows}; it must be above {first}")));
    }
    config.positions = Some(PositionTable { rows, first });
    config.stack.max_position_embeddings = rows - first;
    Ok(config)
}

/// Reads the layers of BERT: attention with biases, a feed-forward block that is not gated, norms after the sums.
fn stack(fields: &Fields, norm: NormConfig, activation: &str) -> Result<DecoderConfig> {
    let (hidden, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    let layers = fields.size("num_hidden_layers")?;
    if layers > MAX_LAYERS {
        let message = format!("is {layers}; no model has more than {MAX_LAYERS}");
        return Err(fields.error("num_hidden_layers", message));
    }
    if !hidden.is_multiple_of(heads) || hidden > i32::MAX as usize / 3 {
        let message = format!("is {heads}; it must divide hidden_size, {hidden}");
        return Err(fields.error("num_attention_heads", message));
    }
    let head_dim = hidden / heads;
    let layer = LayerConfig {
        mixer: MixerKind::Attention,
        attention: None,
        kv_source: None,
        intermediate_size: None,
        activation_sparsity: None,
        sliding_window: None,
        rope: None,
        feeds_forward: true,
        is_moe: false,
    };
    Ok(DecoderConfig {
        vocab_size: fields.size("vocab_size")?,
        max_position_embeddings: fields.size("max_position_embeddings")?,
        hidden_size: hidden,
        layers: vec![layer; layers],
        block: NORMS_AFTER,
        norm,
        attention: AttentionConfig {
            num_heads: heads,
            num_kv_heads: heads,
            head_dim,
            projections: Projections::Apart,
            biases: AttentionBiases { qkv: true, output: true, as_found: false },
            clip_qkv: None,
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
            bias: true,
            input: FeedForwardInput::Plain,
            activation: read_activation(fields, activation)?,
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
            tie_word_embeddings: true,
            is_missing: true,
            bias: false,
            scale: None,
            softcap: None,
        },
        tensors: TensorNames::LLAMA,
    })
}
