//! The config of SigLIP 2's tower and of LFM2-VL's projector, from config.json.

use super::super::config::bounded;
use super::super::footprint::Shape;
use crate::config::Fields;
use crate::error::Result;
use crate::model::activation::Activation;

/// The maximum of numbers per row in a config.
const WIDEST: usize = 1 << 20;

/// The config of the tower and its projector.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::model::vision) struct Siglip2Config {
    /// The sizes. Rows have the width of the text's embeddings.
    pub(in crate::model::vision) shape: Shape,
    pub(super) num_hidden_layers: usize,
    /// The side of the square of patches that has learned positions.
    pub(super) position_side: usize,
    pub(super) hidden_act: Activation,
    pub(super) layer_norm_eps: f32,
    pub(super) projector_hidden_act: Activation,
    pub(super) projector_hidden_size: usize,
    pub(super) projector_bias: bool,
    pub(super) projector_use_layernorm: bool,
}

impl Siglip2Config {
    /// Reads `vision_config`, `text_config` and the keys next to them.
    pub(in crate::model::vision) fn read(fields: &Fields, vision: &Fields, text: &Fields) -> Result<Self> {
        let (hidden_size, heads) =
            (bounded(vision, "hidden_size", 768)?, bounded(vision, "num_attention_heads", 12)?);
        if !hidden_size.is_multiple_of(heads) {
            let message = format_args!("is {heads}; it must divide hidden_size, {hidden_size}");
            return Err(vision.error("num_attention_heads", message));
        }
        let count = vision.optional_size("num_patches")?.unwrap_or(256);
        let position_side = count.isqrt();
        if position_side * position_side != count || count > 1 << 20 {
            let message = format_args!("is {count}; it must be the square of a number up to 1024");
            return Err(vision.error("num_patches", message));
        }
        if let Some(channels) = vision.optional_size("num_channels")?.filter(|&channels| channels != 3) {
            return Err(vision.error("num_channels", format_args!("is {channels}; it must be 3")));
        }
        let width =
            |fields: &Fields, key: &str, usual: usize| match fields.optional_size(key)?.unwrap_or(usual) {
                size if size <= WIDEST => Ok(size),
                size => Err(fields.error(key, format_args!("is {size}; at most {WIDEST} are supported"))),
            };
        let eps = vision.optional_positive("layer_norm_eps")?.unwrap_or(1e-6);
        Ok(Self {
            shape: Shape {
                patch_size: bounded(vision, "patch_size", 16)?,
                spatial_merge_size: bounded(fields, "downsample_factor", 2)?,
                hidden_size,
                intermediate_size: width(vision, "intermediate_size", 3072)?,
                num_heads: heads,
                row_width: text.size("hidden_size")?,
            },
            num_hidden_layers: bounded(vision, "num_hidden_layers", 12)?,
            position_side,
            hidden_act: activation(vision, "hidden_act", "gelu_pytorch_tanh")?,
            layer_norm_eps: eps as f32,
            projector_hidden_act: activation(fields, "projector_hidden_act", "gelu")?,
            projector_hidden_size: width(fields, "projector_hidden_size", 2560)?,
            projector_bias: fields.optional_flag("projector_bias")?.unwrap_or(true),
            projector_use_layernorm: fields.optional_flag("projector_use_layernorm")?.unwrap_or(true),
        })
    }
}

fn activation(fields: &Fields, key: &str, usual: &str) -> Result<Activation> {
    let name = fields.optional_text(key)?.unwrap_or(usual);
    let known = Activation::named(name).filter(|it| *it != Activation::Xielu);
    known.ok_or_else(|| fields.error(key, format_args!("{name:?} is not supported")))
}
