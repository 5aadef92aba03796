//! The names of a checkpoint's tensors. The decoder uses llama's names.

use crate::weights::Weights;

/// Rules that map llama's tensor names to those of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorNames {
    /// Pairs of a text in llama's names and its replacement in the checkpoint's.
    pub renamed: &'static [(&'static str, &'static str)],
    /// True if the decoder is a part of a larger model. The other parts are skipped.
    pub nested: bool,
}

/// The location of the decoder in a larger model: the name of a tensor that identifies it, and the renaming of llama's names.
type TensorLayout = (&'static str, &'static [(&'static str, &'static str)]);

const LAYOUTS: [TensorLayout; 3] = [
    ("model.language_model.embed_tokens.weight", &[("model.", "model.language_model.")]),
    (
        "language_model.model.embed_tokens.weight",
        &[("model.", "language_model.model."), ("lm_head.", "language_model.lm_head.")],
    ),
    ("thinker.model.embed_tokens.weight", &[("model.", "thinker.model."), ("lm_head.", "thinker.lm_head.")]),
];

/// The vision and audio parts of a larger model.
const OTHERS: [&str; 23] = [
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "mm_projector.",
    "audio_tower.",
    "vision_embedder.",
    "embed_vision.",
    "embed_audio.",
    "vision_adapter.",
    "vision_projection.",
    "visual.",
    "model.vision_adapter.",
    "model.vision_projection.",
    "model.visual.",
    "model.vision_tower.",
    "model.vision_model.",
    "model.multi_modal_projector.",
    "model.mm_projector.",
    "model.audio_tower.",
    "model.embed_vision.",
    "model.embed_audio.",
    "model.vision_embedder.",
    "thinker.audio_tower.",
];

/// Returns the vision or audio part that a tensor belongs to, if any.
pub(super) fn non_text_part(name: &str) -> Option<&'static str> {
    let prefix = OTHERS.iter().find(|prefix| name.starts_with(**prefix))?;
    Some(prefix.trim_start_matches("model.").trim_start_matches("thinker.").trim_end_matches('.'))
}

impl TensorNames {
    /// The names of llama.
    pub const LLAMA: Self = Self { renamed: &[], nested: false };

    /// Makes `weights` accept llama's names.
    pub(super) fn prepare(self, weights: &mut Weights) {
        if self.nested {
            weights.skip_under(&OTHERS);
            if let Some((_, names)) = LAYOUTS.iter().find(|(tells, _)| weights.has(tells)) {
                weights.rename(names);
            }
        }
        weights.rename(self.renamed);
        // mlx-lm writes some feed-forward blocks under llama's names, where the published checkpoints have others.
        if weights.has_under(".feed_forward.gate_proj.") {
            weights.rename(&[
                ("feed_forward.w1", "feed_forward.gate_proj"),
                ("feed_forward.w3", "feed_forward.up_proj"),
                ("feed_forward.w2", "feed_forward.down_proj"),
            ]);
        }
        // It writes others under longer names.
        if weights.has_under(".mlp.gate.gate_proj.") {
            weights.rename(&[("mlp.gate.weight", "mlp.gate.gate_proj.weight")]);
        }
        // transformers calls the text layers of Kimi `blocks`, like the layers of its tower.
        if weights.has_under("language_model.model.blocks.") {
            weights.rename(&[("language_model.model.layers.", "language_model.model.blocks.")]);
        }
        // Granite 4 without experts has another name for the dense block.
        if weights.has_under(".mlp.gate_proj.") {
            weights.rename(&[(".shared_mlp.output_linear", ".mlp.down_proj")]);
        }
        // Published checkpoints of Kimi Linear and checkpoints from mlx-lm name the experts differently. transformers also uses the
        // published name for dense blocks.
        if weights.has_under(".block_sparse_moe.gate_proj.") {
            weights.rename(&[(".mlp.", ".block_sparse_moe.")]);
        } else if weights.has_under(".block_sparse_moe.experts.") {
            weights.rename(&[
                (".mlp.experts.", ".block_sparse_moe.experts."),
                (".mlp.gate.", ".block_sparse_moe.gate."),
                (".mlp.shared_experts.", ".block_sparse_moe.shared_experts."),
            ]);
        }
        // Laguna was published with the correction bias among the experts.
        if weights.has_under(".mlp.experts.e_score_correction_bias") {
            weights.rename(&[("mlp.gate.e_score_correction_bias", "mlp.experts.e_score_correction_bias")]);
        }
        // mlx-lm writes the router of Laguna under a longer name.
        if weights.has_under(".mlp.gate.proj.") {
            weights.rename(&[("mlp.gate.weight", "mlp.gate.proj.weight")]);
        }
        let begins = |prefix: &str| weights.names().any(|name| name.starts_with(prefix));
        // GPT-NeoX has other names in published files, in transformers and in mlx-lm.
        if begins("model.embed_in.") {
            weights.rename(&[
                ("gpt_neox.layers.", "model.h."),
                ("gpt_neox.", "model."),
                ("lm_head.", "model.embed_out."),
            ]);
        } else if begins("embed_out.") {
            weights.rename(&[("lm_head.", "embed_out.")]);
        }
        // K-EXAONE was published with a shorter name.
        if weights.has_under(".mlp.e_score_correction_bias") {
            weights.rename(&[("mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias")]);
        }
    }
}
