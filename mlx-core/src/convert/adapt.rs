//! What mlx-lm makes of a checkpoint besides quantizing it: names of nested decoders, the layout of convolutions, and norms that
//! multiply with the weight where the published ones multiply with `1 + weight`. Invariant: pure.

use crate::model::{DecoderConfig, MixerKind, NormKind};

/// Where a larger model keeps its decoder as published, and where mlx-lm does.
const PUBLISHED: &str = "model.language_model.";
const NESTED: &str = "language_model.";

/// The norms that change; those of gated outputs multiply with the weight in any case.
const NORMS: [&str; 5] = [
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
];

/// The changes to the tensors of a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Adaptation {
    nested: bool,
    shifts_norms: bool,
    keeps_decays: bool,
}

impl Adaptation {
    /// Those for a model with this config, prepared with its tensors.
    pub(super) fn new(family: &str, config: &DecoderConfig) -> Self {
        let is_delta = config.layers.iter().any(|layer| matches!(layer.mixer, MixerKind::GatedDelta(_)));
        Self {
            nested: config.tensors.nested,
            shifts_norms: is_delta && config.norm.kind == NormKind::RmsPlusOne,
            keeps_decays: family.starts_with("qwen3_5"),
        }
    }

    /// What a tensor is called.
    pub(super) fn name(self, name: &str) -> String {
        match name.strip_prefix(PUBLISHED) {
            Some(rest) if self.nested => format!("{NESTED}model.{rest}"),
            None if self.nested && !name.starts_with(NESTED) => format!("{NESTED}{name}"),
            _ => name.to_owned(),
        }
    }

    /// The shape of a tensor: channels, taps and 1 for a convolution, in which nothing moves.
    pub(super) fn shape(name: &str, shape: &[usize]) -> Vec<usize> {
        match *shape {
            [channels, 1, taps] if name.ends_with("conv1d.weight") || name.ends_with("conv.weight") => {
                vec![channels, taps, 1]
            }
            _ => shape.to_vec(),
        }
    }

    /// Whether 1 is added to a tensor.
    pub(super) fn adds_one(self, name: &str, shape: &[usize]) -> bool {
        self.shifts_norms && shape.len() == 1 && NORMS.iter().any(|end| name.ends_with(end))
    }

    /// Whether a tensor keeps its type when others are cast.
    pub(super) fn keeps_type(self, name: &str) -> bool {
        self.keeps_decays && name.ends_with("A_log")
    }
}
