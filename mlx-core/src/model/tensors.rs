//! The names of a checkpoint's tensors. The decoder uses llama's.

use crate::weights::Weights;

/// How to find the decoder's tensors in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorNames {
    /// Texts in llama's names, and what stands for them in the checkpoint's.
    pub renamed: &'static [(&'static str, &'static str)],
    /// Whether the decoder is a part of a larger model, of which the rest is left alone.
    pub nested: bool,
}

/// Where a larger model keeps its decoder: a name that tells, and what llama's names become.
type Place = (&'static str, &'static [(&'static str, &'static str)]);

const PLACES: [Place; 2] = [
    ("model.language_model.embed_tokens.weight", &[("model.", "model.language_model.")]),
    (
        "language_model.model.embed_tokens.weight",
        &[("model.", "language_model.model."), ("lm_head.", "language_model.lm_head.")],
    ),
];

/// The parts of a larger model that see pictures and hear sounds.
const OTHERS: [&str; 18] = [
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "mm_projector.",
    "audio_tower.",
    "vision_embedder.",
    "embed_vision.",
    "embed_audio.",
    "visual.",
    "model.visual.",
    "model.vision_tower.",
    "model.vision_model.",
    "model.multi_modal_projector.",
    "model.mm_projector.",
    "model.audio_tower.",
    "model.embed_vision.",
    "model.embed_audio.",
    "model.vision_embedder.",
];

/// The part of a larger model that a tensor belongs to, if it sees or hears.
pub(super) fn part_beside(name: &str) -> Option<&'static str> {
    let prefix = OTHERS.iter().find(|prefix| name.starts_with(**prefix))?;
    Some(prefix.trim_start_matches("model.").trim_end_matches('.'))
}

impl TensorNames {
    /// As llama has them.
    pub const LLAMA: Self = Self { renamed: &[], nested: false };

    /// Lets `weights` be asked by llama's names.
    pub(super) fn prepare(self, weights: &mut Weights) {
        if self.nested {
            weights.skip_under(&OTHERS);
            if let Some((_, names)) = PLACES.iter().find(|(tells, _)| weights.has(tells)) {
                weights.rename(names);
            }
        }
        weights.rename(self.renamed);
        // mlx-lm writes some feed-forward blocks under llama's names where the published checkpoints have others.
        if weights.has_under(".feed_forward.gate_proj.") {
            weights.rename(&[
                ("feed_forward.w1", "feed_forward.gate_proj"),
                ("feed_forward.w3", "feed_forward.up_proj"),
                ("feed_forward.w2", "feed_forward.down_proj"),
            ]);
        }
        // Others it writes under longer names.
        if weights.has_under(".mlp.gate.gate_proj.") {
            weights.rename(&[("mlp.gate.weight", "mlp.gate.gate_proj.weight")]);
        }
        // transformers calls the layers of Kimi's text as those of its tower.
        if weights.has_under("language_model.model.blocks.") {
            weights.rename(&[("language_model.model.layers.", "language_model.model.blocks.")]);
        }
        // Granite 4 without experts.
        if weights.has_under(".mlp.gate_proj.") {
            weights.rename(&[(".shared_mlp.output_linear", ".mlp.down_proj")]);
        }
        // Kimi Linear has experts under one name as published and under another as mlx-lm writes them; as transformers writes it, its dense
        // blocks have the former, too.
        if weights.has_under(".block_sparse_moe.gate_proj.") {
            weights.rename(&[(".mlp.", ".block_sparse_moe.")]);
        } else if weights.has_under(".block_sparse_moe.experts.") {
            weights.rename(&[
                (".mlp.experts.", ".block_sparse_moe.experts."),
                (".mlp.gate.", ".block_sparse_moe.gate."),
                (".mlp.shared_experts.", ".block_sparse_moe.shared_experts."),
            ]);
        }
        // K-EXAONE was published with a shorter one.
        if weights.has_under(".mlp.e_score_correction_bias") {
            weights.rename(&[("mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias")]);
        }
    }
}
