//! The config of Pixtral's tower and of Mistral 3's projector, from config.json and the config of the image processor.

use std::path::Path;

use super::footprint::Shape;
use crate::config::Fields;
use crate::error::Result;
use crate::model::activation::Activation;
use crate::processor::image_processor;

/// The maximum of layers, heads, pixels per side of a patch, and patches per side of a row in a config.
const MAX_COUNT: usize = 4096;

/// The config of the tower and its projector.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PixtralConfig {
    /// The sizes. Rows have the width of the text's embeddings.
    pub(super) shape: Shape,
    pub(super) head_dim: usize,
    pub(super) hidden_act: Activation,
    pub(super) rope_theta: f32,
    /// The number of layers up to the one that the projector reads.
    pub(super) layers: usize,
    /// The number of all layers.
    pub(super) num_hidden_layers: usize,
    pub(super) projector_hidden_act: Activation,
    pub(super) multimodal_projector_bias: bool,
    /// The epsilon of the norms of the text and of the projector.
    pub(super) rms_norm_eps: f32,
}

impl PixtralConfig {
    /// Reads `vision_config`, `text_config` and the keys next to them.
    pub(super) fn read(fields: &Fields, vision: &Fields, text: &Fields) -> Result<Self> {
        let size =
            |key: &str, usual: usize| Ok::<_, crate::Error>(vision.optional_size(key)?.unwrap_or(usual));
        let hidden_size = size("hidden_size", 1024)?;
        let (num_hidden_layers, heads) =
            (bounded(vision, "num_hidden_layers", 24)?, bounded(vision, "num_attention_heads", 16)?);
        let head_dim = hidden_size / heads;
        if head_dim * heads != hidden_size || !head_dim.is_multiple_of(4) {
            let message = "must divide hidden_size into heads whose width is a multiple of 4";
            return Err(vision.error("num_attention_heads", message));
        }
        Ok(Self {
            shape: Shape {
                patch_size: bounded(vision, "patch_size", 16)?,
                spatial_merge_size: bounded(fields, "spatial_merge_size", 2)?,
                hidden_size,
                intermediate_size: size("intermediate_size", 4096)?,
                num_heads: heads,
                row_width: text.size("hidden_size")?,
            },
            head_dim,
            hidden_act: activation(vision, "hidden_act")?,
            rope_theta: rope_theta(vision)?,
            layers: layers(fields, num_hidden_layers)?,
            num_hidden_layers,
            projector_hidden_act: activation(fields, "projector_hidden_act")?,
            multimodal_projector_bias: fields.optional_flag("multimodal_projector_bias")?.unwrap_or(false),
            rms_norm_eps: text.optional_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        })
    }
}

pub(super) fn bounded(fields: &Fields, key: &str, usual: usize) -> Result<usize> {
    match fields.optional_size(key)?.unwrap_or(usual) {
        size if size <= MAX_COUNT => Ok(size),
        size => Err(fields.error(key, format_args!("is {size}; at most {MAX_COUNT} are supported"))),
    }
}

pub(super) fn activation(fields: &Fields, key: &str) -> Result<Activation> {
    let name = fields.optional_text(key)?.unwrap_or("gelu");
    let known = Activation::named(name).filter(|it| *it != Activation::Xielu);
    known.ok_or_else(|| fields.error(key, format_args!("{name:?} is not supported")))
}

/// Reads theta, which newer configs have in a section.
fn rope_theta(vision: &Fields) -> Result<f32> {
    let section = vision.section("rope_parameters")?;
    let inner = section.map(|section| section.optional_positive("rope_theta")).transpose()?.flatten();
    let theta = inner.map_or_else(|| vision.optional_positive("rope_theta"), |theta| Ok(Some(theta)))?;
    Ok(theta.unwrap_or(10_000.0) as f32)
}

/// Returns the number of layers before the rows that are read. `vision_feature_layer` counts the input of the first layer as 0, or counts
/// from the end.
fn layers(fields: &Fields, all: usize) -> Result<usize> {
    let layer = fields.optional_number("vision_feature_layer")?.unwrap_or(-1.0);
    let count = if layer < 0.0 { all as f64 + 1.0 + layer } else { layer };
    if count.fract() != 0.0 || count < 0.0 || count > all as f64 {
        return Err(fields.error("vision_feature_layer", format_args!("is {layer}; there are {all} layers")));
    }
    Ok(count as usize)
}

/// The normalization of colors from 0 to 1: a mean is subtracted, and the result is divided by a standard deviation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Normalization {
    pub(super) image_mean: [f64; 3],
    pub(super) image_std: [f64; 3],
}

impl Normalization {
    /// The values of CLIP (Radford et al., 2021, arXiv:2103.00020).
    pub(super) const CLIP: Self = Self {
        image_mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
        image_std: [0.268_629_54, 0.261_302_58, 0.275_777_11],
    };

    /// Colors stay in the range from 0 to 1.
    pub(super) const NONE: Self = Self { image_mean: [0.0; 3], image_std: [1.0; 3] };

    /// Colors are mapped to the range from -1 to 1.
    pub(super) const HALVES: Self = Self { image_mean: [0.5; 3], image_std: [0.5; 3] };

    /// Reads the config of the image processor. Without any, returns the `usual` normalization.
    pub(super) fn read(folder: &Path, usual: Self) -> Result<Self> {
        let Some(fields) = image_processor(folder)? else { return Ok(usual) };
        let three = |key: &str, usual: [f64; 3]| match fields.numbers(key)?.as_slice() {
            [] => Ok(usual),
            &[red, green, blue] => Ok([red, green, blue]),
            other => Err(fields.error(key, format_args!("has {} numbers; 3 are needed", other.len()))),
        };
        let image_std = three("image_std", usual.image_std)?;
        if image_std.contains(&0.0) {
            return Err(fields.error("image_std", "contains 0; pixels are divided by it"));
        }
        Ok(Self { image_mean: three("image_mean", usual.image_mean)?, image_std })
    }
}
