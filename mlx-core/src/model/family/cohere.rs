//! Cohere's Command: attention and feed-forward read the same norm and run in parallel; rope is interleaved.

use super::base::{self, Defaults, LLAMA, flag, nullable};
use super::{layers, mixtures};
use crate::config::Fields;
use crate::error::Result;
use crate::model::attention::QkNormScope;
use crate::model::config::BlockConfig;
use crate::model::config::DecoderConfig;
use crate::model::head::LogitScale;
use crate::model::moe::{MoeConfig, RoutingConfig, ScoringFunc, SharedExpertConfig};
use crate::model::norm::NormKind;

const COHERE: Defaults = Defaults {
    max_position_embeddings: 8192,
    eps: ("layer_norm_eps", 1e-5),
    norm: NormKind::Layer,
    rope_theta: 500_000.0,
    interleaved: true,
    ..LLAMA
};

fn read(fields: &Fields, defaults: &Defaults) -> Result<DecoderConfig> {
    let biased = flag(fields, "layer_norm_bias", false)?;
    let norm = if biased { NormKind::LayerWithBias } else { defaults.norm };
    let mut config = base::with_biases(fields, &Defaults { norm, ..*defaults })?;
    config.feed_forward.bias = false;
    config.block = BlockConfig { pre_feedforward_norm: None, parallel_residual: true, ..BlockConfig::LLAMA };
    config.head.scale = nullable(fields, "logit_scale", Some(0.0625))?.map(LogitScale::Times);
    config.head.tie_word_embeddings = true;
    Ok(config)
}

/// Command R and R+.
pub(super) fn cohere(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = read(fields, &COHERE)?;
    if flag(fields, "use_qk_norm", false)? {
        base::normalize_heads(&mut config, QkNormScope::HeadOwnWeights);
    }
    Ok(config)
}

/// Command R7B and A: three of four layers have a window. The fourth attends to everything and has no rope.
pub(super) fn cohere2(fields: &Fields) -> Result<DecoderConfig> {
    // `head_dim` is always the width divided by the number of heads.
    let mut config = read(&fields.without("head_dim"), &Defaults { rope_theta: 10_000.0, ..COHERE })?;
    let pattern = fields.optional_size("sliding_window_pattern")?.unwrap_or(4);
    let sliding = layers::kinds(fields, config.layers.len(), |layer| !(layer + 1).is_multiple_of(pattern))?;
    layers::set_window(fields, &mut config, &sliding, layers::window(fields, Some(4096))?)?;
    for layer in &mut config.layers {
        layer.rope = layer.rope.take().filter(|_| layer.sliding_window.is_some());
    }
    Ok(config)
}

/// Command A+: like [`cohere2`], with experts. The first layers may be dense, with rope and a separate pattern of windows.
pub(super) fn cohere2_moe(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &fields.with_default("head_dim", 128.into());
    let is_rms = fields.has("rms_norm_eps");
    let defaults = Defaults { rope_theta: 10_000.0, ..COHERE };
    let defaults = if is_rms {
        Defaults { eps: ("rms_norm_eps", 1e-5), norm: NormKind::Rms, ..defaults }
    } else {
        defaults
    };
    let mut config = read(fields, &defaults)?;
    let count = config.layers.len();
    let dense = fields.optional_count("first_k_dense_replace")?.unwrap_or(0);
    let of_dense = fields.optional_size("prefix_dense_sliding_window_pattern")?.unwrap_or(1);
    let of_sparse = fields.optional_size("sliding_window_pattern")?.unwrap_or(4);
    let sliding = layers::kinds(fields, count, |layer| {
        if layer < dense {
            !(layer + 1).is_multiple_of(of_dense)
        } else {
            !(layer - dense + 1).is_multiple_of(of_sparse)
        }
    })?;
    layers::set_window(fields, &mut config, &sliding, layers::window(fields, Some(4096))?)?;
    let sparse = layers::sparse_kinds(fields, count, |layer| layer >= dense)?;
    let width = fields.optional_size("prefix_dense_intermediate_size")?;
    for (layer, &sparse) in config.layers.iter_mut().zip(&sparse) {
        let rotates = layer.sliding_window.is_some() || !sparse && of_dense == 1;
        layer.rope = layer.rope.take().filter(|_| rotates);
        layer.intermediate_size = width.filter(|_| !sparse);
    }
    let experts = experts(fields, config.feed_forward.intermediate_size)?;
    Ok(mixtures::sparse(config, experts, |layer| sparse[layer]))
}

fn experts(fields: &Fields, width: usize) -> Result<MoeConfig> {
    let averages_shared = match fields.optional_text("shared_expert_combination_strategy")? {
        None | Some("average") => true,
        Some("sum") => false,
        Some(other) => {
            let message = format_args!("{other:?} is not supported; supported are average and sum");
            return Err(fields.error("shared_expert_combination_strategy", message));
        }
    };
    let routing = match fields.optional_text("expert_selection_fn")? {
        None | Some("softmax") => RoutingConfig::softmax(true),
        Some("sigmoid") => RoutingConfig {
            scoring_func: ScoringFunc::Sigmoid,
            ..RoutingConfig::softmax(flag(fields, "norm_topk_prob", true)?)
        },
        Some(other) => {
            let message = format_args!("{other:?} is not supported; supported are softmax and sigmoid");
            return Err(fields.error("expert_selection_fn", message));
        }
    };
    let shared = fields.optional_count("num_shared_experts")?.unwrap_or(0);
    Ok(MoeConfig {
        routing,
        shared: (shared > 0).then(|| SharedExpertConfig::gated("shared_experts", shared * width)),
        averages_shared,
        ..mixtures::read(fields, 8, 2, width)?
    })
}
