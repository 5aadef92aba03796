//! The input of an encoder's first layer: the sum of the embeddings of tokens, positions and types, and its norm.

use mlx_rs::Array;
use mlx_rs::ops::{add, multiply};

use super::batch::Padded;
use super::config::{EncoderConfig, PositionTable};
use crate::array::{from_tokens, scalar_like};
use crate::error::Result;
use crate::model::embedding::Embedding;
use crate::model::norm::Norm;
use crate::weights::Weights;

/// The tables of embeddings.
pub(super) struct Embeddings {
    words: Embedding,
    positions: Option<(PositionTable, Embedding)>,
    types: Option<Embedding>,
    /// True if there is a type for the second text of a pair.
    has_pairs: bool,
    norm: Option<Norm>,
    scale: Option<f32>,
}

impl Embeddings {
    /// Loads `model.embed_tokens`, `model.embed_positions`, `model.embed_types` and `model.embed_norm`, as far as the config has them.
    pub(super) fn load(weights: &mut Weights, config: &EncoderConfig) -> Result<Self> {
        let (stack, hidden) = (&config.stack, config.stack.hidden_size);
        let words = Embedding::load(weights, "model.embed_tokens", stack.vocab_size, hidden)?;
        let positions = config.positions.map(|table| {
            Ok::<_, crate::Error>((
                table,
                Embedding::load(weights, "model.embed_positions", table.rows, hidden)?,
            ))
        });
        let positions = positions.transpose()?;
        let types = match config.token_types {
            0 => None,
            count => Some(Embedding::load(weights, "model.embed_types", count, hidden)?),
        };
        let norm = config.embedding_norm.then(|| Norm::load(weights, "model.embed_norm", hidden, stack.norm));
        let (norm, has_pairs) = (norm.transpose()?, config.token_types > 1);
        Ok(Self { words, positions, types, has_pairs, norm, scale: stack.embedding_scale })
    }

    /// Returns the embeddings of texts, `[texts * length, hidden]`.
    pub(super) fn forward(&self, texts: &Padded) -> Result<Array> {
        let mut sum = self.words.rows(&texts.ids())?;
        if let Some(scale) = self.scale {
            sum = multiply(&sum, scalar_like(scale, &sum)?)?;
        }
        if let Some(types) = &self.types {
            let of_tokens = texts.types().filter(|_| self.has_pairs).unwrap_or_else(|| from_tokens(&[0]));
            sum = add(&sum, types.rows(&of_tokens)?)?;
        }
        if let Some((table, positions)) = &self.positions {
            sum = add(&sum, positions.rows(&texts.rows(*table))?)?;
        }
        self.norm.as_ref().map_or(Ok(sum.clone()), |norm| norm.forward(&sum))
    }
}
