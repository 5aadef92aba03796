//! Decoders with layer norms or without gates: Phi 1 and 2, GPT-NeoX (Pythia), Nemotron, Jais 2 and Arcee.

use super::base::{self, Defaults, LLAMA, flag, refuse};
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::Projections;
use crate::model::config::{BlockConfig, DecoderConfig};
use crate::model::feed_forward::FeedForwardInput;
use crate::model::norm::NormKind;
use crate::model::tensors::TensorNames;

/// Phi 1 and 2: attention and feed-forward read the same norm, everything has biases, rope rotates half of each head.
pub(super) fn phi(fields: &Fields) -> Result<DecoderConfig> {
    refuse(fields, "qk_layernorm")?;
    let defaults = Defaults {
        eps: ("layer_norm_eps", 1e-5),
        norm: NormKind::LayerWithBias,
        partial_rotary_factor: Some(0.5),
        activation: ("hidden_act", "gelu_new"),
        ..LLAMA
    };
    let mut config = base::read(fields, &defaults)?;
    (config.attention.biases.qkv, config.attention.biases.output, config.feed_forward.bias) =
        (true, true, true);
    config.feed_forward.input = FeedForwardInput::Plain;
    config.block = BlockConfig { pre_feedforward_norm: None, parallel_residual: true, ..BlockConfig::LLAMA };
    config.tensors = TensorNames {
        renamed: &[
            ("self_attn.o_proj", "self_attn.dense"),
            ("mlp.up_proj", "mlp.fc1"),
            ("mlp.down_proj", "mlp.fc2"),
            ("model.norm", "model.final_layernorm"),
        ],
        nested: false,
    };
    Ok(config)
}

/// GPT-NeoX: attention and feed-forward run in parallel with separate norms. Rope rotates a quarter of each head.
pub(super) fn gpt_neox(fields: &Fields) -> Result<DecoderConfig> {
    let mut fields = fields.clone();
    for (own, key) in [("rotary_pct", "partial_rotary_factor"), ("rotary_emb_base", "rope_theta")] {
        if let Some(value) = fields.get(own).cloned() {
            fields = fields.without(key).with_default(key, value);
        }
    }
    let defaults = Defaults {
        eps: ("layer_norm_eps", 1e-5),
        norm: NormKind::LayerWithBias,
        partial_rotary_factor: Some(0.25),
        activation: ("hidden_act", "gelu"),
        ..LLAMA
    };
    let mut config = base::read(&fields.without("num_key_value_heads").without("head_dim"), &defaults)?;
    let bias = flag(&fields, "attention_bias", true)?;
    (config.attention.biases.qkv, config.attention.biases.output, config.feed_forward.bias) =
        (bias, bias, true);
    config.attention.projections = Projections::ByKeyHead;
    config.feed_forward.input = FeedForwardInput::Plain;
    config.block.parallel_residual = flag(&fields, "use_parallel_residual", true)?;
    config.tensors = TensorNames {
        renamed: &[
            ("model.embed_tokens", "gpt_neox.embed_in"),
            ("model.layers.", "gpt_neox.layers."),
            ("model.norm", "gpt_neox.final_layer_norm"),
            ("self_attn.qkv_proj", "attention.query_key_value"),
            ("self_attn.o_proj", "attention.dense"),
            ("mlp.up_proj", "mlp.dense_h_to_4h"),
            ("mlp.down_proj", "mlp.dense_4h_to_h"),
        ],
        nested: false,
    };
    Ok(config)
}

/// Nemotron and Minitron: layer norms multiply by `1 + weight`, the feed-forward block has no gate.
pub(super) fn nemotron(fields: &Fields) -> Result<DecoderConfig> {
    let defaults = Defaults {
        max_position_embeddings: 4096,
        eps: ("norm_eps", 1e-5),
        norm: NormKind::LayerPlusOneWithBias,
        partial_rotary_factor: Some(0.5),
        activation: ("hidden_act", "relu2"),
        ..LLAMA
    };
    without_gates(fields, &defaults)
}

/// Jais 2: layer norms and biases, the feed-forward block has no gate.
pub(super) fn jais2(fields: &Fields) -> Result<DecoderConfig> {
    let fields = fields.with_default("attention_bias", true.into()).with_default("mlp_bias", true.into());
    let defaults = Defaults {
        max_position_embeddings: 8192,
        eps: ("layer_norm_eps", 1e-5),
        norm: NormKind::LayerWithBias,
        activation: ("hidden_act", "relu2"),
        ..LLAMA
    };
    without_gates(&fields, &defaults)
}

/// Arcee's AFM: llama without gates.
pub(super) fn arcee(fields: &Fields) -> Result<DecoderConfig> {
    let defaults = Defaults {
        max_position_embeddings: 4096,
        eps: ("rms_norm_eps", 1e-5),
        activation: ("hidden_act", "relu2"),
        ..LLAMA
    };
    without_gates(fields, &defaults)
}

fn without_gates(fields: &Fields, defaults: &Defaults) -> Result<DecoderConfig> {
    let mut config = base::with_biases(fields, defaults)?;
    config.feed_forward.input = FeedForwardInput::Plain;
    Ok(config)
}
