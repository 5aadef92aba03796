//! The config of an encoder: its layers in the form of a decoder's, and the differences.

use super::names::EncoderNames;
use crate::error::Result;
use crate::model::activation::Activation;
use crate::model::attention::Projections;
use crate::model::config::DecoderConfig;
use crate::weights::Weights;

/// Everything that differs between the encoders that are supported.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub struct EncoderConfig {
    /// The vocabulary, widths, layers and norms. In a layer with a window, a token attends to tokens that are less than the window away, on
    /// both sides.
    pub stack: DecoderConfig,
    /// The table of positions, if they are learned.
    pub positions: Option<PositionTable>,
    /// The number of token types with an embedding; 0 for none.
    pub token_types: usize,
    /// True if the sum of the embeddings is normalized.
    pub embedding_norm: bool,
    /// True if a layer normalizes the sum of its input and its output. Otherwise it normalizes its input, or its output before the sum.
    pub norm_after_sum: bool,
    /// True if the first layer does not normalize the input of its attention.
    pub first_layer_is_normalized: bool,
    /// True if the output of the last layer is normalized.
    pub last_norm: bool,
    /// The bias of scores by the distance of two tokens.
    pub relative_bias: Option<RelativeBias>,
    /// The head of a cross-encoder.
    pub head: Option<ClassifierConfig>,
    /// The names of the checkpoint's tensors.
    pub names: EncoderNames,
}

impl EncoderConfig {
    /// Makes `weights` accept the names of this code, and skips tensors of training.
    pub(in crate::model) fn prepare(&mut self, weights: &mut Weights) -> Result<()> {
        if self.names == EncoderNames::LLAMA {
            self.stack.prepare(weights)?;
            // mlx-embeddings stores the Dense modules of EmbeddingGemma here. They run on the host.
            weights.skip_all(|name| {
                name.contains("lm_head.") || name.trim_start_matches("model.").starts_with("dense.")
            });
            return Ok(());
        }
        if self.names.otherwise.is_some() && weights.has_under(self.names.marker) {
            self.stack.attention.projections = Projections::InOne;
        }
        let head = self.head.iter().flat_map(|head| head.dense.iter());
        let uses: Vec<&str> = head
            .flat_map(|dense| [Some(dense.name), dense.norm])
            .flatten()
            .map(|name| name.trim_start_matches("model."))
            .collect();
        self.names.prepare(weights, &uses);
        Ok(())
    }
}

/// A table of learned positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionTable {
    /// The number of rows.
    pub rows: usize,
    /// The row of the first token.
    pub first: usize,
}

/// A learned bias of scores for each head and bucket of distances (Raffel et al., 2020, arXiv:1910.10683).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelativeBias {
    /// The number of buckets: one half for each direction.
    pub buckets: usize,
    /// Larger distances share the last bucket.
    pub max_distance: usize,
}

/// The head of a cross-encoder, which maps the hidden states of a pair to logits.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassifierConfig {
    /// The number of logits.
    pub labels: usize,
    /// True if the head reads the mean of all hidden states instead of the first one.
    pub reads_mean: bool,
    /// The first of two layers.
    pub dense: Option<ClassifierDense>,
    /// The name of the last layer.
    pub output: &'static str,
}

/// The first layer of a classification head.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassifierDense {
    /// The name of its tensors.
    pub name: &'static str,
    /// True if it has a bias.
    pub bias: bool,
    /// Its activation function; `None` for the hyperbolic tangent.
    pub activation: Option<Activation>,
    /// The name of the norm of its output, if there is one.
    pub norm: Option<&'static str>,
}
