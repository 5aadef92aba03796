//! Differences between a published checkpoint and mlx-lm's form, other than quantization: names of nested decoders, the layout of
//! convolutions, and norms. mlx-lm's norms multiply with the weight, the published ones with `1 + weight`. Invariant: pure.

use crate::model::{DecoderConfig, MixerKind, NormKind};

/// The name prefix of a nested decoder: published, and in mlx-lm.
const PUBLISHED: &str = "model.language_model.";
const NESTED: &str = "language_model.";
/// The name prefix of all tensors in the first files of Qwen3-ASR.
const THINKER: &str = "thinker.";

/// The norms that change. Norms of gated outputs already multiply with the weight.
const NORMS: [&str; 5] = [
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
];

/// Suffixes of the names of tensors that keep their type when others are cast, by family.
const KEPT: [(&[&str], &[&str]); 5] = [
    (&["qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"], &["A_log"]),
    (&["nemotron_h"], &["A_log", "e_score_correction_bias"]),
    (&["kimi_linear"], &["A_log", "dt_bias", "e_score_correction_bias"]),
    (
        &[
            "deepseek_v3",
            "kimi_k2",
            "joyai_llm_flash",
            "kimi_k25",
            "kimi_vl",
            "glm4_moe",
            "glm4_moe_lite",
            "solar_open",
            "exaone_moe",
            "laguna",
            "minimax",
            "minimax_m2",
        ],
        &["e_score_correction_bias"],
    ),
    (&["lfm2_moe", "afmoe", "bailing_moe", "bailing_hybrid"], &["expert_bias"]),
];

/// Parts of names that mlx-lm renames, by family.
const RENAMED: [(&str, &str, &str); 13] = [
    ("kimi_linear", ".block_sparse_moe.gate.e_score_correction_bias", ".mlp.e_score_correction_bias"),
    ("kimi_linear", ".block_sparse_moe.", ".mlp."),
    ("kimi_linear", ".q_conv1d.", ".q_conv.conv."),
    ("kimi_linear", ".k_conv1d.", ".k_conv.conv."),
    ("kimi_linear", ".v_conv1d.", ".v_conv.conv."),
    ("lfm2_moe", ".feed_forward.w1.", ".feed_forward.gate_proj."),
    ("lfm2_moe", ".feed_forward.w2.", ".feed_forward.down_proj."),
    ("lfm2_moe", ".feed_forward.w3.", ".feed_forward.up_proj."),
    ("bailing_moe", ".mlp.gate.weight", ".mlp.gate.gate_proj.weight"),
    ("kimi_k25", "language_model.model.blocks.", "language_model.model.layers."),
    ("laguna", ".mlp.gate.weight", ".mlp.gate.proj.weight"),
    ("laguna", ".mlp.experts.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
    ("exaone_moe", ".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
];

/// The changes to the tensors of a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Adaptation<'a> {
    family: &'a str,
    nested: bool,
    shifts_norms: bool,
    /// Suffixes of the names of tensors that keep their type.
    kept: &'static [&'static str],
}

impl<'a> Adaptation<'a> {
    /// Returns the changes for a model with this config, prepared with its tensors.
    pub(super) fn new(family: &'a str, config: &DecoderConfig) -> Self {
        let is_delta = config.layers.iter().any(|layer| matches!(layer.mixer, MixerKind::GatedDelta(_)));
        Self {
            // The files may nest it in a larger model, but mlx-lm does not.
            nested: config.tensors.nested && family != "gemma4_text",
            shifts_norms: is_delta && config.norm.kind == NormKind::RmsPlusOne,
            family,
            kept: KEPT.iter().find(|(families, _)| families.contains(&family)).map_or(&[], |(_, ends)| *ends),
        }
    }

    /// Returns the name of a tensor in mlx-lm.
    pub(super) fn name(self, name: &str) -> String {
        let name = name.strip_prefix(THINKER).unwrap_or(name);
        let renamed = RENAMED.iter().find(|(family, from, _)| *family == self.family && name.contains(from));
        let name = renamed.map_or_else(|| name.to_owned(), |(_, from, to)| name.replacen(from, to, 1));
        match name.strip_prefix(PUBLISHED) {
            Some(rest) if self.nested => format!("{NESTED}model.{rest}"),
            None if self.nested && !name.starts_with(NESTED) => format!("{NESTED}{name}"),
            _ => name,
        }
    }

    /// Returns the shape of a tensor in mlx-lm. A convolution becomes channels, taps and 1; its data keeps its order.
    pub(super) fn shape(name: &str, shape: &[usize]) -> Vec<usize> {
        match *shape {
            [heads, size] if name.ends_with(".dt_bias") => vec![heads * size],
            [channels, 1, taps] if name.ends_with("conv1d.weight") || name.ends_with("conv.weight") => {
                vec![channels, taps, 1]
            }
            _ => shape.to_vec(),
        }
    }

    /// Returns true if 1 is added to the tensor.
    pub(super) fn adds_one(self, name: &str, shape: &[usize]) -> bool {
        self.shifts_norms && shape.len() == 1 && NORMS.iter().any(|end| name.ends_with(end))
    }

    /// Returns true if the tensor keeps its type when others are cast.
    pub(super) fn keeps_type(self, name: &str) -> bool {
        self.kept.iter().any(|end| name.ends_with(end))
    }
}
