//! The names of a Whisper checkpoint's tensors. The code uses transformers' names.

use crate::weights::Weights;

/// Pairs of a text in transformers' names and its replacement in the original's, in the form that mlx-community's conversions have.
const ORIGINAL: [(&str, &str); 22] = [
    ("model.encoder.layers.", "encoder.blocks."),
    ("model.decoder.layers.", "decoder.blocks."),
    ("encoder_attn.q_proj", "cross_attn.query"),
    ("encoder_attn.k_proj", "cross_attn.key"),
    ("encoder_attn.v_proj", "cross_attn.value"),
    ("encoder_attn.out_proj", "cross_attn.out"),
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("self_attn.q_proj", "attn.query"),
    ("self_attn.k_proj", "attn.key"),
    ("self_attn.v_proj", "attn.value"),
    ("self_attn.out_proj", "attn.out"),
    ("self_attn_layer_norm", "attn_ln"),
    ("fc1", "mlp1"),
    ("fc2", "mlp2"),
    ("final_layer_norm", "mlp_ln"),
    ("model.encoder.layer_norm", "encoder.ln_post"),
    ("model.decoder.layer_norm", "decoder.ln"),
    ("model.decoder.embed_tokens", "decoder.token_embedding"),
    ("model.decoder.embed_positions.weight", "decoder.positional_embedding"),
    ("model.encoder.embed_positions.weight", "encoder.positional_embedding"),
    ("model.encoder.conv1", "encoder.conv1"),
    ("model.encoder.conv2", "encoder.conv2"),
];

/// Makes `weights` accept the names of this code, and skips tensors that are not used.
pub(super) fn prepare(weights: &mut Weights) {
    // The head is the embedding of the tokens. Some files store it twice.
    weights.skip_all(|name| name == "proj_out.weight");
    if weights.has_under("encoder.blocks.") {
        weights.rename(&ORIGINAL);
    } else if !weights.has("model.encoder.conv1.weight") {
        weights.rename(&[("model.", "")]);
    }
}
