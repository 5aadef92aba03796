//! Granite with sliding windows and sinks, and HyperCLOVA X, which has Granite's factors.

use super::base::{self, LLAMA, positive};
use super::layers;
use super::llama::granite;
use super::mixtures::granitemoe;
use crate::config::Fields;
use crate::error::Result;
use crate::model::config::{BlockConfig, DecoderConfig};
use crate::model::head::LogitScale;
use crate::model::moe::ExpertTensors;

/// Granite with a window in three of four layers, and sinks.
pub(super) fn granite_swa(fields: &Fields) -> Result<DecoderConfig> {
    let fields = &fields
        .with_default("num_key_value_heads", 4.into())
        .with_default("max_position_embeddings", 8192.into())
        .with_default("rms_norm_eps", 1e-5.into());
    with_windows(fields, granite(fields)?)
}

/// Like [`granite_swa`], with experts.
pub(super) fn granitemoe_swa(fields: &Fields) -> Result<DecoderConfig> {
    let mut config = with_windows(fields, granitemoe(fields)?)?;
    if let Some(experts) = &mut config.experts {
        experts.router = "router";
        experts.tensors = ExpertTensors::InOne(["experts.gate_up_proj", "experts.down_proj"]);
    }
    Ok(config)
}

/// Adds windows, sinks, and `layer_rope_theta`, where 0 means no rope.
fn with_windows(fields: &Fields, mut config: DecoderConfig) -> Result<DecoderConfig> {
    config.attention.sinks = true;
    let count = config.layers.len();
    let sliding = layers::kinds(fields, count, |layer| !layer.is_multiple_of(4))?;
    layers::set_window(fields, &mut config, &sliding, layers::window(fields, Some(128))?)?;
    let thetas = layers::rope_thetas(fields, count)?;
    for (layer, theta) in config.layers.iter_mut().zip(thetas.unwrap_or_default()) {
        layer.rope = layer.rope.take().filter(|_| theta > 0.0);
        if let Some(rope) = &mut layer.rope {
            rope.theta = theta;
        }
    }
    Ok(config)
}

/// HyperCLOVA X: Granite with a norm after each part of a block. Logits are multiplied by their factor.
pub(super) fn hyperclovax(fields: &Fields) -> Result<DecoderConfig> {
    let size = base::head_dim(fields, &LLAMA)?;
    let usual = (size as f64).sqrt().recip();
    let given = fields.optional_positive("attention_multiplier")?.unwrap_or(usual);
    let fields = &fields.without("attention_multiplier").with_default("attention_multiplier", given.into());
    let mut config = granite(fields)?;
    config.head.scale = Some(LogitScale::Times(positive(fields, "logits_scaling", 1.0)? as f32));
    if base::flag(fields, "use_post_norm", true)? {
        config.block = BlockConfig {
            post_attention_norm: Some("post_norm1"),
            post_feedforward_norm: Some("post_norm2"),
            ..config.block
        };
    }
    Ok(config)
}
