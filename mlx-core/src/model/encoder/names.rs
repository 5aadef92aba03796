//! The names of an encoder's tensors. The code uses llama's names.

use crate::weights::Weights;

/// Pairs of a text in llama's names and its replacement in the checkpoint's.
type Renamed = &'static [(&'static str, &'static str)];

/// The names of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderNames {
    /// The possible names of the encoder within a model with a head, such as `bert.`. A model without a head may lack them.
    pub prefixes: &'static [&'static str],
    /// The names of tensors, after `model.` is replaced by the prefix.
    pub renamed: Renamed,
    /// The part of a tensor's name that only this layout has.
    pub marker: &'static str,
    /// A second layout, for checkpoints without the marker.
    pub otherwise: Option<Renamed>,
}

/// Parts of checkpoints that no vector depends on: heads of training, and numbers that are computed here.
const UNUSED: [&str; 10] = [
    "cls.",
    "vocab_",
    "lm_head.",
    "decoder.",
    "head.dense.",
    "head.norm.",
    "pooler.",
    "position_ids",
    "token_type_ids",
    "rotary_emb.inv_freq",
];

const BERT: Renamed = &[
    ("embed_tokens", "embeddings.word_embeddings"),
    ("embed_positions", "embeddings.position_embeddings"),
    ("embed_types", "embeddings.token_type_embeddings"),
    ("embed_norm", "embeddings.LayerNorm"),
    ("layers.", "encoder.layer."),
    ("self_attn.q_proj", "attention.self.query"),
    ("self_attn.k_proj", "attention.self.key"),
    ("self_attn.v_proj", "attention.self.value"),
    ("self_attn.o_proj", "attention.output.dense"),
    ("post_attention_layernorm", "attention.output.LayerNorm"),
    ("mlp.up_proj", "intermediate.dense"),
    ("mlp.down_proj", "output.dense"),
    ("post_feedforward_layernorm", "output.LayerNorm"),
];

const DISTILBERT: Renamed = &[
    ("embed_tokens", "embeddings.word_embeddings"),
    ("embed_positions", "embeddings.position_embeddings"),
    ("embed_norm", "embeddings.LayerNorm"),
    ("layers.", "transformer.layer."),
    ("self_attn.q_proj", "attention.q_lin"),
    ("self_attn.k_proj", "attention.k_lin"),
    ("self_attn.v_proj", "attention.v_lin"),
    ("self_attn.o_proj", "attention.out_lin"),
    ("post_attention_layernorm", "sa_layer_norm"),
    ("mlp.up_proj", "ffn.lin1"),
    ("mlp.down_proj", "ffn.lin2"),
    ("post_feedforward_layernorm", "output_layer_norm"),
];

const MPNET: Renamed = &[
    ("embed_tokens", "embeddings.word_embeddings"),
    ("embed_positions", "embeddings.position_embeddings"),
    ("embed_norm", "embeddings.LayerNorm"),
    ("layers.", "encoder.layer."),
    ("relative_bias", "encoder.relative_attention_bias"),
    ("self_attn.q_proj", "attention.attn.q"),
    ("self_attn.k_proj", "attention.attn.k"),
    ("self_attn.v_proj", "attention.attn.v"),
    ("self_attn.o_proj", "attention.attn.o"),
    ("post_attention_layernorm", "attention.LayerNorm"),
    ("mlp.up_proj", "intermediate.dense"),
    ("mlp.down_proj", "output.dense"),
    ("post_feedforward_layernorm", "output.LayerNorm"),
];

const NOMIC: Renamed = &[
    ("embed_tokens", "embeddings.word_embeddings"),
    ("embed_types", "embeddings.token_type_embeddings"),
    ("embed_norm", "emb_ln"),
    ("layers.", "encoder.layers."),
    ("self_attn.qkv_proj", "attn.Wqkv"),
    ("self_attn.o_proj", "attn.out_proj"),
    ("mlp.gate_proj", "mlp.fc12"),
    ("mlp.up_proj", "mlp.fc11"),
    ("mlp.down_proj", "mlp.fc2"),
    ("post_attention_layernorm", "norm1"),
    ("post_feedforward_layernorm", "norm2"),
];

/// The names that transformers writes.
const NOMIC_OF_TRANSFORMERS: Renamed = &[
    ("embed_tokens", "embeddings.word_embeddings"),
    ("embed_types", "embeddings.token_type_embeddings"),
    ("embed_norm", "embeddings.LayerNorm"),
    ("post_feedforward_layernorm", "post_mlp_layernorm"),
];

const MODERNBERT: Renamed = &[
    ("embed_tokens", "embeddings.tok_embeddings"),
    ("embed_norm", "embeddings.norm"),
    ("self_attn.qkv_proj", "attn.Wqkv"),
    ("self_attn.o_proj", "attn.Wo"),
    ("mlp.gate_up_proj", "mlp.Wi"),
    ("mlp.down_proj", "mlp.Wo"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "mlp_norm"),
    ("model.norm", "model.final_norm"),
];

impl EncoderNames {
    pub(super) const BERT: Self = Self::of(&["bert.", ""], BERT);
    pub(super) const ROBERTA: Self = Self::of(&["roberta.", "bert.", ""], BERT);
    pub(super) const DISTILBERT: Self = Self::of(&["distilbert.", ""], DISTILBERT);
    pub(super) const MPNET: Self = Self::of(&["mpnet.", ""], MPNET);
    pub(super) const NOMIC: Self = Self {
        marker: ".attn.Wqkv.",
        otherwise: Some(NOMIC_OF_TRANSFORMERS),
        ..Self::of(&["nomic_bert.", "bert.", ""], NOMIC)
    };
    pub(super) const MODERNBERT: Self = Self::of(&["model.", ""], MODERNBERT);
    /// The names of decoders.
    pub(super) const LLAMA: Self = Self::of(&["model."], &[]);

    const fn of(prefixes: &'static [&'static str], renamed: Renamed) -> Self {
        Self { prefixes, renamed, marker: "", otherwise: None }
    }

    /// Makes `weights` accept llama's names, and skips the heads of training. A pooler or a head that `uses` names is not skipped.
    pub(super) fn prepare(self, weights: &mut Weights, uses: &[&str]) {
        let renamed = match self.otherwise {
            Some(other) if !weights.has_under(self.marker) => other,
            _ => self.renamed,
        };
        weights.rename(renamed);
        if weights.has_under("LayerNorm.gamma") {
            weights.rename(&[("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")]);
        }
        let is_there =
            |prefix: &str| weights.names().any(|name| name.starts_with(&format!("{prefix}embeddings.")));
        if let Some(prefix) =
            self.prefixes.iter().find(|prefix| is_there(prefix)).filter(|it| **it != "model.")
        {
            weights.rename(&[("model.", prefix)]);
        }
        let is_used = |name: &str| uses.iter().any(|part| name.contains(part));
        weights.skip_all(|name| UNUSED.iter().any(|part| name.contains(part)) && !is_used(name));
    }
}
