//! The config of a decoder: everything that differs between the checkpoints of all families.

use super::altup::AltUpConfig;
use super::attention::AttentionConfig;
use super::feed_forward::{FeedForwardConfig, FeedForwardInput};
use super::head::{HeadConfig, LogitScale};
use super::mamba2::F32_SUFFIXES;
use super::mixer::MixerKind;
use super::moe::MoeConfig;
use super::norm::{NormConfig, NormKind};
use super::per_layer_input::PerLayerInputConfig;
use super::rope::RopeConfig;
use super::tensors::TensorNames;
use crate::error::Result;
use crate::quantization::MATRIX_PARTS;
use crate::weights::Weights;

/// Everything that differs between checkpoints of the families that this decoder supports.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// The number of token ids.
    pub vocab_size: usize,
    /// The longest sequence the checkpoint was trained for, in tokens.
    pub max_position_embeddings: usize,
    /// The width of the residual stream.
    pub hidden_size: usize,
    /// The config of each layer.
    pub layers: Vec<LayerConfig>,
    /// Norms and residual connections of every layer.
    pub block: BlockConfig,
    /// All norms except the norms of queries and keys.
    pub norm: NormConfig,
    /// The attention of every layer.
    pub attention: AttentionConfig,
    /// The feed-forward block of every layer without experts.
    pub feed_forward: FeedForwardConfig,
    /// The experts of every layer that has them.
    pub experts: Option<MoeConfig>,
    /// The per-layer inputs, which each layer gets from the token itself in addition to the residual stream.
    pub per_layer_input: Option<PerLayerInputConfig>,
    /// Several residual streams, one of which the layers compute.
    pub altup: Option<AltUpConfig>,
    /// The factor of embeddings.
    pub embedding_scale: Option<f32>,
    /// A norm of embeddings without a weight.
    pub embedding_norm: Option<NormConfig>,
    /// The last norm, if it differs from [`DecoderConfig::norm`].
    pub last_norm: Option<NormConfig>,
    /// The number of draft layers that follow the last one in the checkpoint. They are not loaded with the model.
    pub draft_layers: usize,
    /// The head, which maps the output of the last norm to logits.
    pub head: HeadConfig,
    /// The names of the checkpoint's tensors.
    pub tensors: TensorNames,
}

impl DecoderConfig {
    /// Returns the attention of a layer; `None` if its mixer does not attend.
    pub fn attention_of<'a>(&'a self, layer: &'a LayerConfig) -> Option<&'a AttentionConfig> {
        layer.mixer.attends().then(|| layer.attention.as_deref().unwrap_or(&self.attention))
    }

    /// Renames and skips tensors, so that `weights` has the decoder's names. Corrects biases and the tied head if config.json
    /// contradicts the tensors.
    pub(super) fn prepare(&mut self, weights: &mut Weights) -> Result<()> {
        self.prepare_with_heads(weights)?;
        let drafts = self.layers.len()..self.layers.len() + self.draft_layers;
        let drafts: Vec<String> = drafts.map(|layer| format!(".layers.{layer}.")).collect();
        weights.skip_all(|name| drafts.iter().any(|layer| name.contains(layer)));
        let heads =
            ["mtp.", "model.mtp.", "language_model.mtp.", "model.language_model.mtp.", "model.mtp_layers."];
        weights.skip_all(|name| heads.iter().any(|head| name.starts_with(head)));
        Ok(())
    }

    /// Like [`prepare`](Self::prepare), but keeps the tensors of draft heads.
    pub(super) fn prepare_with_heads(&mut self, weights: &mut Weights) -> Result<()> {
        self.tensors.prepare(weights);
        self.prepare_gated_delta(weights);
        self.prepare_mamba2(weights);
        self.skip_borrowed(weights);
        // Old exports include the rope table, which is computed here.
        weights.skip_all(|name| name.ends_with("rotary_emb.inv_freq") || name.ends_with(".rope.inv_freq"));
        // Those of GPT-NeoX include the causal mask.
        weights
            .skip_all(|name| name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias"));
        if self.attention.biases.as_found {
            let first = self.layers.iter().position(|layer| layer.mixer.attends()).unwrap_or(0);
            let has = |part: &str| weights.has_bias(&format!("model.layers.{first}.self_attn.{part}"));
            self.attention.biases.qkv = has("q_proj") || has("qkv_proj");
            self.attention.biases.output = has("o_proj");
        }
        // ERNIE has a bias that config.json does not mention.
        self.head.bias |= weights.has("lm_head.bias");
        if self.head.tie_word_embeddings && weights.has("lm_head.weight") {
            // Some exports write the shared matrix twice. In others, config.json is wrong about it.
            self.head.tie_word_embeddings =
                weights.are_equal("lm_head.weight", "model.embed_tokens.weight")?;
        }
        let has_head = weights.has("lm_head.weight") || weights.is_named("lm_head.weight");
        if !self.head.tie_word_embeddings && !has_head {
            (self.head.is_missing, self.head.tie_word_embeddings) = (true, true);
        }
        if self.head.tie_word_embeddings {
            for part in MATRIX_PARTS {
                weights.skip(&format!("lm_head.{part}"));
            }
        }
        self.prepare_shared_expert(weights);
        self.prepare_multipliers(weights);
        Ok(())
    }
}

impl DecoderConfig {
    /// Skips the key and value projections of layers that borrow keys and values. Published files have them, but nothing reads them.
    fn skip_borrowed(&self, weights: &mut Weights) {
        let borrowing = self.layers.iter().enumerate().filter(|(_, layer)| layer.kv_source.is_some());
        for (index, _) in borrowing {
            for part in ["k_proj", "v_proj", "k_norm", "v_norm"] {
                for end in MATRIX_PARTS.into_iter().chain(["bias"]) {
                    weights.skip(&format!("model.layers.{index}.self_attn.{part}.{end}"));
                }
            }
        }
    }

    /// Detects the convention of gated delta layers. Norms of published checkpoints multiply by `1 + weight`, norms of mlx-lm's
    /// checkpoints by `weight`. Only the shape of the convolution tells them apart.
    fn prepare_gated_delta(&mut self, weights: &mut Weights) {
        let is_delta = |layer: &LayerConfig| matches!(layer.mixer, MixerKind::GatedDelta(_));
        let Some(layer) = self.layers.iter().position(is_delta) else { return };
        weights.keep_f32(".A_log");
        let conv = weights.shape(&format!("model.layers.{layer}.linear_attn.conv1d.weight"));
        let converted = conv.is_some_and(|shape| shape.last() == Some(&1));
        self.norm.kind = if converted { NormKind::Rms } else { NormKind::RmsPlusOne };
        if let Some(norm) = &mut self.attention.norm {
            norm.norm.kind = self.norm.kind;
        }
    }
}

impl DecoderConfig {
    /// Adapts names and the feed-forward block to the tensors of Mamba-2 checkpoints, and keeps f32 tensors in f32.
    fn prepare_mamba2(&mut self, weights: &mut Weights) {
        let has = |kind: fn(&LayerConfig) -> bool| self.layers.iter().any(kind);
        let is_mamba = has(|layer| layer.mixer.mamba2().is_some());
        if is_mamba || has(|layer| matches!(layer.mixer, MixerKind::KimiDelta(_))) {
            for end in F32_SUFFIXES {
                weights.keep_f32(end);
            }
            // MTP heads of these families are not loaded.
            weights.skip_all(|name| name.starts_with("mtp.") || name.starts_with("model.mtp"));
        }
        if !is_mamba {
            return;
        }
        if !weights.has_under("backbone.") {
            weights.rename(&[("backbone.", "model.")]);
        } else if weights.has_under("backbone.embedding.") {
            weights.rename(&[("backbone.embeddings.", "backbone.embedding.")]);
        }
        if weights.has_under(".mlp.gate_proj.") {
            self.feed_forward.input = FeedForwardInput::Gated;
        }
    }

    /// Adapts Granite's shared expert to GGUF files, which have gate and up apart.
    fn prepare_shared_expert(&mut self, weights: &mut Weights) {
        let shared = self.experts.as_mut().and_then(|experts| experts.shared.as_mut());
        if let Some(shared) = shared.filter(|shared| shared.input == FeedForwardInput::GatedInOne)
            && weights.has_under(".shared_mlp.gate_proj.")
        {
            shared.input = FeedForwardInput::Gated;
            weights.rename(&[(".block_sparse_moe.shared_mlp.", ".shared_mlp.")]);
        }
    }

    /// Adapts the multipliers of Falcon-H1 to checkpoints that mlx-lm converted. It multiplied their weights by the factors of config.json.
    /// The exceptions are `key_multiplier` and the factor of values, `attention_in_multiplier`, which the output of attention gets here.
    fn prepare_multipliers(&mut self, weights: &Weights) {
        let is_both = |layer: &LayerConfig| matches!(layer.mixer, MixerKind::BesideMamba2(_));
        let Some(layer) = self.layers.iter().position(is_both) else { return };
        let conv = weights.shape(&format!("model.layers.{layer}.mamba.conv1d.weight"));
        if conv.and_then(<[usize]>::last) != Some(&1) {
            return;
        }
        self.feed_forward.multipliers = None;
        let embedding = self.embedding_scale.take().unwrap_or(1.0);
        self.head.scale = match self.head.scale {
            Some(LogitScale::Times(head)) if self.head.tie_word_embeddings => {
                Some(LogitScale::Times(head / embedding))
            }
            _ => None,
        };
        for layer in &mut self.layers {
            if let MixerKind::BesideMamba2(both) = &mut layer.mixer {
                both.mamba.multipliers = None;
                both.attention_out_multiplier = both.attention_in_multiplier;
                (both.attention_in_multiplier, both.ssm_in_multiplier, both.ssm_out_multiplier) =
                    (1.0, 1.0, 1.0);
            }
        }
    }
}

/// The properties that may differ between layers.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// The mixer, which combines the rows of a sequence.
    pub mixer: MixerKind,
    /// The shape of its attention, if it differs from [`DecoderConfig::attention`].
    pub attention: Option<Box<AttentionConfig>>,
    /// The layer that provides the keys and values, if this one has none. Its shape and window are the same. Layers with a source come last.
    pub kv_source: Option<usize>,
    /// The width of its dense feed-forward block, if it differs from [`DecoderConfig::feed_forward`].
    pub intermediate_size: Option<usize>,
    /// The share of the gates of its dense feed-forward block that are cut off.
    pub activation_sparsity: Option<f32>,
    /// The number of positions that a row sees, itself included, at least 1; all of them if `None`.
    pub sliding_window: Option<usize>,
    /// Rotary embedding of queries and keys; `None` for a layer without positions.
    pub rope: Option<RopeConfig>,
    /// True if it has a feed-forward block, dense or with experts.
    pub feeds_forward: bool,
    /// True if it has experts, in a model with experts.
    pub is_moe: bool,
}

impl LayerConfig {
    /// Returns true if it extends states that it does not borrow.
    pub(crate) fn extends(&self) -> bool {
        self.kv_source.is_none() && self.mixer != MixerKind::None
    }
}

/// The norms of a layer, by the names of their tensors, and its residual connections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockConfig {
    /// The norm before attention.
    pub input_norm: Option<&'static str>,
    /// The norm after attention, before the residual addition.
    pub post_attention_norm: Option<&'static str>,
    /// The norm before the feed-forward block.
    pub pre_feedforward_norm: Option<&'static str>,
    /// The norm after the feed-forward block, before the residual addition.
    pub post_feedforward_norm: Option<&'static str>,
    /// True if the feed-forward block reads the input of attention instead of its output.
    pub parallel_residual: bool,
    /// The epsilon of the norms after attention and after the feed-forward block, if it differs from the others'.
    pub post_norm_eps: Option<f32>,
    /// The factor of both outputs before the residual addition.
    pub residual_multiplier: Option<f32>,
    /// True if the layer's output is multiplied by a learned number, `layer_scalar`.
    pub layer_scalar: bool,
}

impl BlockConfig {
    /// The norms of llama: one before attention and one before the feed-forward block.
    pub const LLAMA: Self = Self {
        input_norm: Some("input_layernorm"),
        post_attention_norm: None,
        pre_feedforward_norm: Some("post_attention_layernorm"),
        post_feedforward_norm: None,
        parallel_residual: false,
        post_norm_eps: None,
        residual_multiplier: None,
        layer_scalar: false,
    };
}
