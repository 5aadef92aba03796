//! The config of Gemma 4's tower.

use super::super::config::{activation, bounded};
use super::super::footprint::Shape;
use crate::config::Fields;
use crate::error::Result;
use crate::model::activation::Activation;
use crate::model::norm::{NormConfig, NormKind};

/// The maximum of numbers per patch and positions per side in a config.
const WIDEST: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq)]
pub(in crate::model::vision) struct Gemma4Config {
    /// The sizes. Rows have the width of the text's embeddings.
    pub(in crate::model::vision) shape: Shape,
    pub(super) hidden_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_key_value_heads: usize,
    pub(super) head_dim: usize,
    pub(super) hidden_activation: Activation,
    pub(super) rope_theta: f32,
    pub(super) norm: NormConfig,
    pub(super) position_embedding_size: usize,
    pub(super) use_clipped_linears: bool,
    pub(super) standardize: bool,
}

impl Gemma4Config {
    /// Reads `vision_config`. Its rows must have the width of the text.
    pub(in crate::model::vision) fn read(vision: &Fields, text: &Fields) -> Result<Self> {
        let width = |key: &str, usual: usize| match vision.optional_size(key)?.unwrap_or(usual) {
            size if size <= WIDEST => Ok(size),
            size => Err(vision.error(key, format_args!("is {size}; at most {WIDEST} are supported"))),
        };
        let (heads, keys) =
            (bounded(vision, "num_attention_heads", 12)?, bounded(vision, "num_key_value_heads", 12)?);
        if !heads.is_multiple_of(keys) {
            let message = format_args!("is {keys}, which does not divide num_attention_heads, {heads}");
            return Err(vision.error("num_key_value_heads", message));
        }
        let (hidden_size, head_dim) = (width("hidden_size", 768)?, bounded(vision, "head_dim", 64)?);
        if !head_dim.is_multiple_of(4) {
            let message = format_args!("is {head_dim}; it must be a multiple of 4");
            return Err(vision.error("head_dim", message));
        }
        if vision.optional_flag("attention_bias")? == Some(true) {
            return Err(vision.error("attention_bias", "is true; biases are not supported here"));
        }
        Ok(Self {
            shape: Shape {
                patch_size: bounded(vision, "patch_size", 16)?,
                spatial_merge_size: bounded(vision, "pooling_kernel_size", 3)?,
                hidden_size: hidden_size.max(heads * head_dim),
                intermediate_size: width("intermediate_size", 3072)?,
                num_heads: heads,
                row_width: text.optional_size("hidden_size")?.unwrap_or(2304),
            },
            hidden_size,
            num_hidden_layers: bounded(vision, "num_hidden_layers", 16)?,
            num_key_value_heads: keys,
            head_dim,
            hidden_activation: if vision.has("hidden_activation") {
                activation(vision, "hidden_activation")?
            } else {
                Activation::GeluTanh
            },
            rope_theta: rope_theta(vision)?,
            norm: NormConfig {
                kind: NormKind::Rms,
                eps: vision.optional_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            },
            position_embedding_size: width("position_embedding_size", 10_240)?,
            use_clipped_linears: vision.optional_flag("use_clipped_linears")?.unwrap_or(false),
            standardize: vision.optional_flag("standardize")?.unwrap_or(false),
        })
    }
}

fn rope_theta(vision: &Fields) -> Result<f32> {
    let Some(rope) = vision.section("rope_parameters")? else { return Ok(100.0) };
    match rope.optional_text("rope_type")?.unwrap_or("axial") {
        // Older files use the name "default".
        "axial" | "default" => Ok(rope.optional_positive("rope_theta")?.unwrap_or(100.0) as f32),
        other => {
            Err(rope.error("rope_type", format_args!("{other:?} is not supported in a tower; \"axial\" is")))
        }
    }
}
