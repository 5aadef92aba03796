//! OLMo 1; OLMo 2 and 3, and EXAONE 4: norms after attention and feed-forward instead of before.

use super::base::{self, Defaults, LLAMA, nullable};
use super::layers::{self, FULL, SLIDING};
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::QkNormScope;
use crate::model::config::BlockConfig;
use crate::model::config::DecoderConfig;
use crate::model::norm::NormKind;
use crate::model::rope::RopeConfig;

/// OLMo 1: layer norms without weights.
pub(super) fn olmo(fields: &Fields) -> Result<DecoderConfig> {
    let defaults = Defaults { norm: NormKind::LayerWithoutWeight, eps: ("norm_eps", 1e-5), ..LLAMA };
    let mut config = base::with_biases(fields, &defaults)?;
    config.feed_forward.bias = false;
    // The epsilon is always this number.
    config.norm.eps = 1e-5;
    config.attention.clip_qkv = nullable(fields, "clip_qkv", None)?;
    Ok(config)
}

const OLMO2: Defaults = Defaults { eps: ("rms_norm_eps", 1e-5), ..LLAMA };

const BLOCK: BlockConfig = BlockConfig {
    input_norm: None,
    post_attention_norm: Some("post_attention_layernorm"),
    pre_feedforward_norm: None,
    post_feedforward_norm: Some("post_feedforward_layernorm"),
    ..BlockConfig::LLAMA
};

/// OLMo 2: queries and keys are normalized over their whole width.
pub(super) fn olmo2(fields: &Fields) -> Result<DecoderConfig> {
    read(fields, &OLMO2)
}

fn read(fields: &Fields, defaults: &Defaults) -> Result<DecoderConfig> {
    let mut config = base::with_biases(fields, defaults)?;
    config.block = BLOCK;
    base::normalize_heads(&mut config, QkNormScope::Width);
    Ok(config)
}

/// OLMo 3: three of four layers have a window, and their rope is never scaled.
pub(super) fn olmo3(fields: &Fields) -> Result<DecoderConfig> {
    let defaults = Defaults { rope_theta: 500_000.0, ..OLMO2 };
    let mut config = read(fields, &defaults)?;
    let sliding = layers::kinds(fields, config.layers.len(), |layer| !(layer + 1).is_multiple_of(4))?;
    layers::set_window(fields, &mut config, &sliding, layers::window(fields, Some(4096))?)?;
    let (size, rope) = (config.attention.head_dim, base::rope_defaults(fields, &defaults)?);
    let global = RopeConfig::read_for(fields, FULL, size, rope)?;
    let local = RopeConfig::of_kind(fields, SLIDING, size, rope)?;
    for (layer, sliding) in config.layers.iter_mut().zip(sliding) {
        layer.rope = Some(if sliding { local.clone() } else { global.clone() });
    }
    Ok(config)
}

/// EXAONE 4: each head is normalized. If some layers have a window, the others have no rope.
pub(super) fn exaone4(fields: &Fields) -> Result<DecoderConfig> {
    let defaults = Defaults { num_kv_heads: Some(32), ..OLMO2 };
    let mut config = base::read(fields, &defaults)?;
    config.block = BLOCK;
    base::normalize_heads(&mut config, QkNormScope::Head);
    let key = "sliding_window_pattern";
    let everywhere = fields.is_null(key) && !fields.has("layer_types");
    let window = layers::window(fields, Some(4096))?.filter(|_| !everywhere);
    // transformers writes the pattern 0 if the window is null.
    let usual: Box<dyn Fn(usize) -> bool> = match window {
        Some(_) => pattern(fields, key)?,
        None => Box::new(|_| false),
    };
    let sliding = layers::kinds(fields, config.layers.len(), usual)?;
    layers::set_window(fields, &mut config, &sliding, window)?;
    if window.is_some() {
        for layer in &mut config.layers {
            layer.rope = layer.rope.take().filter(|_| layer.sliding_window.is_some());
        }
    }
    Ok(config)
}

/// Returns a function that is true for layers with a window: all except every n-th one, or by a repeated text of L (local) and G (global).
fn pattern(fields: &Fields, key: &str) -> Result<Box<dyn Fn(usize) -> bool>> {
    if let Ok(Some(text)) = fields.optional_text(key) {
        let kinds: Vec<char> = text.chars().collect();
        if kinds.is_empty() || kinds.iter().any(|kind| !"LG".contains(*kind)) {
            return Err(
                fields.error(key, format_args!("is {text:?}; it must consist of L and G, or be a number"))
            );
        }
        return Ok(Box::new(move |layer| kinds[layer % kinds.len()] == 'L'));
    }
    let every = fields.optional_size(key)?.unwrap_or(4);
    Ok(Box::new(move |layer: usize| !(layer + 1).is_multiple_of(every)))
}
