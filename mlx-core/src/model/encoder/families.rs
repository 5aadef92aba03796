//! Encoder families as data: one function per family reads config.json into an [`EncoderConfig`]. transformers' configuration classes are
//! the reference for names and defaults.

use serde_json::{Value, json};

use super::classifier_config;
use super::config::{EncoderConfig, PositionTable, RelativeBias};
use super::names::EncoderNames;
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::{AttentionBiases, Projections};
use crate::model::config::{BlockConfig, DecoderConfig};
use crate::model::family::base::{self, Defaults, flag, refuse};
use crate::model::feed_forward::FeedForwardInput;
use crate::model::norm::NormKind;
use crate::model::rope::RopeConfig;

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

/// The defaults of BERT. Its other defaults are added to the fields, since some families rename their keys.
const BERT: Defaults = Defaults {
    max_position_embeddings: 512,
    eps: ("layer_norm_eps", 1e-12),
    norm: NormKind::LayerWithBias,
    activation: ("hidden_act", "gelu"),
    ..base::LLAMA
};

/// The defaults of ModernBERT.
const MODERNBERT: Defaults = Defaults {
    max_position_embeddings: 8192,
    eps: ("norm_eps", 1e-5),
    norm: NormKind::Layer,
    activation: ("hidden_activation", "gelu"),
    ..base::LLAMA
};

/// The kinds of ModernBERT's layers, with the keys of their theta and its defaults.
const KINDS: [(&str, &str, f64); 2] =
    [("full_attention", "global_rope_theta", 160_000.0), ("sliding_attention", "local_rope_theta", 10_000.0)];

/// Adds defaults for keys that config.json lacks.
fn with_defaults(fields: &Fields, defaults: &Value) -> Fields {
    let defaults = defaults.as_object().into_iter().flatten();
    defaults.fold(fields.clone(), |fields, (key, value)| fields.with_default(key, value.clone()))
}

/// Adds the defaults of BERT for keys that config.json lacks.
fn with_defaults_of_bert(fields: &Fields) -> Fields {
    with_defaults(
        fields,
        &json!({"vocab_size": 30_522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "intermediate_size": 3072, "type_vocab_size": 2}),
    )
}

/// Reads BERT, under the names of its keys: layer norms after the sums, learned positions from 0, token types.
pub(super) fn bert(fields: &Fields) -> Result<EncoderConfig> {
    let fields = &with_defaults_of_bert(fields);
    for key in ["is_decoder", "add_cross_attention"] {
        if fields.optional_flag(key)? == Some(true) {
            return Err(fields.error(key, "is true; supported are encoders"));
        }
    }
    if let Some(other) = fields.optional_text("position_embedding_type")?.filter(|kind| *kind != "absolute") {
        return Err(fields.error("position_embedding_type", format!("is {other:?}; supported is absolute")));
    }
    let mut stack = stack(fields, &BERT)?;
    for layer in &mut stack.layers {
        layer.rope = None;
    }
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

/// Nomic BERT: rope, a gated feed-forward block, no biases. The older keys are GPT-2's.
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
    let fields = with_defaults(
        &renamed,
        &json!({"vocab_size": 30_528, "hidden_act": activation, "max_position_embeddings": 2048}),
    );
    let fields = &with_defaults_of_bert(&fields);
    let config = bert(fields)?;
    let mut stack = stack(fields, &Defaults { rope_theta: 1000.0, ..BERT })?;
    // Beyond the length of its training, a factor scales the frequencies of such a model.
    if fields.has("rotary_scaling_factor")
        && let Some(trained) = fields.optional_size("max_trained_positions")?
    {
        stack.max_position_embeddings = stack.max_position_embeddings.min(trained);
    }
    stack.feed_forward.input = FeedForwardInput::Gated;
    stack.feed_forward.bias = false;
    stack.attention.biases = AttentionBiases::default();
    Ok(EncoderConfig { positions: None, head: None, names: EncoderNames::NOMIC, stack, ..config })
}

/// Rejects variants of Nomic BERT whose vectors would differ.
fn expect_plain_nomic(fields: &Fields) -> Result<()> {
    for key in
        ["qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "use_rms_norm", "rotary_emb_interleaved"]
    {
        refuse(fields, key)?;
    }
    if let Some(base) = fields.optional_number("rotary_emb_scale_base")? {
        let message =
            format!("is {base}, which scales queries and keys by their positions; supported is null");
        return Err(fields.error("rotary_emb_scale_base", message));
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
    let fields = &with_defaults(
        fields,
        &json!({"vocab_size": 50_368, "hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12,
            "intermediate_size": 1152, "local_attention": 128, "global_attn_every_n_layers": 3}),
    );
    let norm = if flag(fields, "norm_bias", false)? { NormKind::LayerWithBias } else { NormKind::Layer };
    let mut stack = stack(fields, &Defaults { norm, ..MODERNBERT })?;
    stack.block = BlockConfig::LLAMA;
    let bias = flag(fields, "attention_bias", false)?;
    stack.attention.biases = AttentionBiases { qkv: bias, output: bias, as_found: false };
    stack.attention.projections = Projections::InOne;
    stack.feed_forward.input = FeedForwardInput::GatedInOne;
    stack.feed_forward.bias = flag(fields, "mlp_bias", false)?;
    let period = fields.size("global_attn_every_n_layers")?;
    let kinds = fields.strings("layer_types")?;
    let [global, local] = KINDS.map(|kind| rope_of_kind(fields, &stack, kind));
    let (global, local) = (global?, local?);
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

/// Returns the rope of a kind of ModernBERT's layers: its section of `rope_parameters`, then `rope_scaling`, which both kinds share.
fn rope_of_kind(
    fields: &Fields,
    stack: &DecoderConfig,
    (kind, theta, usual): (&str, &str, f64),
) -> Result<RopeConfig> {
    let sections = fields.section("rope_parameters")?;
    let stray = |key: &&str| KINDS.iter().all(|(kind, ..)| kind != key);
    if let Some(key) = sections.iter().flat_map(Fields::keys).find(stray) {
        let message = format!("has {key:?}; supported are the sections full_attention and sliding_attention");
        return Err(fields.error("rope_parameters", message));
    }
    let own = sections.as_ref().and_then(|sections| sections.get(kind));
    let mut rope = own.and_then(Value::as_object).cloned().unwrap_or_default();
    let scaling = fields.section("rope_scaling")?;
    for key in scaling.iter().flat_map(Fields::keys) {
        let value = scaling.as_ref().and_then(|scaling| scaling.get(key));
        rope.insert(key.to_owned(), value.cloned().unwrap_or_default());
    }
    let theta = fields.optional_positive(theta)?.unwrap_or(usual);
    rope.entry("rope_theta").or_insert_with(|| theta.into());
    let fields = fields.without("rope_scaling").without("rope_parameters");
    let fields = fields.with_default("rope_parameters", json!({ kind: rope }));
    let defaults = base::rope_defaults(&fields, &MODERNBERT)?;
    RopeConfig::of_kind(&fields, kind, stack.attention.head_dim, defaults)
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
fn stack(fields: &Fields, defaults: &Defaults) -> Result<DecoderConfig> {
    let (hidden, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    if !fields.has("head_dim") && !hidden.is_multiple_of(heads) || hidden > i32::MAX as usize / 3 {
        let message = format!("is {heads}; it must divide hidden_size, {hidden}");
        return Err(fields.error("num_attention_heads", message));
    }
    let mut stack = base::read(fields, defaults)?;
    stack.block = NORMS_AFTER;
    stack.attention.biases = AttentionBiases { qkv: true, output: true, as_found: false };
    stack.feed_forward.bias = true;
    stack.feed_forward.input = FeedForwardInput::Plain;
    stack.head.is_missing = true;
    Ok(stack)
}

#[cfg(test)]
mod tests;
