//! LFM3: short convolutions, and attention with and without a window, with gates on the output of heads.

use serde_json::json;

use super::base::{self, Defaults, LLAMA, flag};
use super::hybrid::mix;
use super::layers::{self, FULL, SLIDING};
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::{HeadGateConfig, OutputGate, QkNormScope};
use crate::model::config::{BlockConfig, DecoderConfig};
use crate::model::mixer::MixerKind;
use crate::model::rope::RopeConfig;
use crate::model::short_conv::ShortConvConfig;
use crate::model::tensors::TensorNames;

const LFM3: Defaults = Defaults {
    num_kv_heads: Some(4),
    head_dim: Some(128),
    max_position_embeddings: 128_000,
    eps: ("norm_eps", 1e-5),
    rope_theta: 1e6,
    ..LLAMA
};

/// LFM3.
pub(super) fn lfm3(fields: &Fields) -> Result<DecoderConfig> {
    let usual = json!({
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
    });
    let fields = &base::with_default_rope(fields, usual).with_default("intermediate_size", 7680.into());
    let mut config = base::with_biases(fields, &LFM3)?;
    config.feed_forward.bias = false;
    base::normalize_heads(&mut config, QkNormScope::Head);
    if flag(fields, "use_attention_gate", true)? {
        config.attention.output_gate =
            Some(OutputGate::Heads(HeadGateConfig { per_head: true, softplus: false }));
    }
    if flag(fields, "use_sandwich_norm", true)? {
        config.block = BlockConfig {
            post_attention_norm: Some("post_operator_norm"),
            post_feedforward_norm: Some("post_ffn_norm"),
            ..BlockConfig::LLAMA
        };
    }
    set_layers(fields, &mut config)?;
    config.tensors = TensorNames {
        renamed: &[
            (".mlp.", ".feed_forward."),
            ("feed_forward.gate_proj", "feed_forward.w1"),
            ("feed_forward.up_proj", "feed_forward.w3"),
            ("feed_forward.down_proj", "feed_forward.w2"),
            ("input_layernorm", "operator_norm"),
            ("post_attention_layernorm", "ffn_norm"),
            ("model.norm", "model.embedding_norm"),
            ("self_attn.g_proj", "self_attn.gate_proj"),
        ],
        nested: false,
    };
    Ok(config)
}

/// Sets convolutions, windows and ropes by `layer_types`.
fn set_layers(fields: &Fields, config: &mut DecoderConfig) -> Result<()> {
    let usual = |layer: usize| match layer % 4 {
        2 => FULL,
        0 if layer > 0 => SLIDING,
        _ => "conv",
    };
    let count = config.layers.len();
    let kinds = layers::named_kinds(fields, count, &["conv", SLIDING, FULL], usual)?;
    let taps = fields.optional_size("conv_L_cache")?.unwrap_or(7);
    if taps < 2 {
        return Err(fields.error("conv_L_cache", "is 1; it must be at least 2"));
    }
    let is = |kind: &str| kinds.iter().map(|it| it == kind).collect::<Vec<bool>>();
    layers::set_window(fields, config, &is(SLIDING), layers::window(fields, Some(256))?)?;
    let (size, rope) = (config.attention.head_dim, base::rope_defaults(fields, &LFM3)?);
    let global = RopeConfig::read_for(fields, FULL, size, rope)?;
    let local = RopeConfig::read_for(fields, SLIDING, size, rope)?;
    for (layer, kind) in config.layers.iter_mut().zip(&kinds) {
        layer.rope = Some(if kind == SLIDING { local.clone() } else { global.clone() });
    }
    let (channels, bias) = (config.hidden_size, flag(fields, "conv_bias", false)?);
    let conv = ShortConvConfig { channels, taps, bias };
    mix(config, &is("conv"), MixerKind::ShortConv(conv));
    Ok(())
}
