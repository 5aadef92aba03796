//! The ends of a decoder: the embedding before the first layer, the last norm and the head.

use mlx_rs::ops::{concatenate, multiply, zeros_dtype};
use mlx_rs::{Array, Dtype};

use super::altup::AltUpEnds;
use super::batch::{Batch, Input};
use super::config::DecoderConfig;
use super::embedding::Embedding;
use super::head::HeadConfig;
use super::linear::{Linear, Part};
use super::mtp::{Fusion, MtpNames};
use super::norm::{Norm, NormConfig};
use super::pass::Pass;
use super::per_layer_input::PerLayerInputs;
use crate::array::{scalar_like, slice_axis};
use crate::error::{Error, Result};
use crate::weights::Weights;

/// The embedding, the last norm and the head.
pub(super) struct EmbeddingAndHead {
    embedding: Embedding,
    embedding_scale: Option<f32>,
    embedding_norm: Option<NormConfig>,
    per_layer_inputs: Option<PerLayerInputs>,
    altup: Option<AltUpEnds>,
    /// The input projection of an MTP head.
    fusion: Option<Fusion>,
    norm: Norm,
    head: Linear,
    head_config: HeadConfig,
    /// The width of the residual stream.
    width: i32,
    dtype: Dtype,
}

impl EmbeddingAndHead {
    /// Loads the embedding, the last norm and the head.
    pub(super) fn load(
        weights: &mut Weights,
        config: &DecoderConfig,
        mtp: Option<&MtpNames>,
    ) -> Result<Self> {
        let (hidden, dtype) = (config.hidden_size, weights.dtype());
        let embedding = Embedding::load(weights, "model.embed_tokens", config.vocab_size, hidden)?;
        let (layers, inputs) = (config.layers.len(), config.per_layer_input);
        let per_layer_inputs = inputs.map(|inputs| PerLayerInputs::load(weights, inputs, layers, hidden));
        let per_layer_inputs = per_layer_inputs.transpose()?;
        let altup = config.altup.map(|altup| AltUpEnds::load(weights, hidden, altup)).transpose()?;
        let norm = mtp.map_or("model.norm", |names| names.norm.as_str());
        let norm = Norm::load(weights, norm, hidden, config.last_norm.unwrap_or(config.norm))?;
        let fusion = mtp.map(|names| Fusion::load(weights, names, config)).transpose()?;
        let head = if config.head.tie_word_embeddings {
            let bias = config.head.bias.then(|| weights.take("lm_head.bias", &[config.vocab_size]));
            embedding.head(bias.transpose()?)?
        } else {
            let part = Part { name: "lm_head", outputs: config.vocab_size };
            Linear::load(weights, &[part], hidden, config.head.bias)?
        };
        let (embedding_scale, head_config) = (config.embedding_scale, config.head);
        let width = hidden as i32;
        Ok(Self {
            embedding,
            embedding_scale,
            embedding_norm: config.embedding_norm,
            per_layer_inputs,
            altup,
            fusion,
            norm,
            head,
            head_config,
            width,
            dtype,
        })
    }

    /// Starts a pass: computes the input of the first layer.
    pub(super) fn begin(&self, batch: Batch, family: &str) -> Result<Pass> {
        let mut deep = Vec::new();
        let (hidden, reads_tokens) = match batch.input() {
            Input::Tokens(tokens) => (self.embedded(tokens)?, Some(tokens)),
            Input::Pictured { tokens, rows, places, .. } => {
                let part = |index: i32| slice_axis(rows, 1, index * self.width, (index + 1) * self.width);
                let hidden = with_rows(&self.embedded(tokens)?, &part(0)?, places)?;
                for index in 1..rows.dim(1) / self.width {
                    let nothing = zeros_dtype(hidden.shape(), hidden.dtype())?;
                    deep.push(with_rows(&nothing, &part(index)?, places)?);
                }
                (hidden, Some(tokens))
            }
            Input::Mtp { tokens, hidden } => match &self.fusion {
                Some(fusion) => (fusion.forward(&self.embedded(tokens)?, hidden)?, None),
                None => return Err(Error::Internal("MTP input was given to the base model".into())),
            },
            Input::Embeddings(_) if self.per_layer_inputs.is_some() => {
                let message = format!(
                    "cannot be the input of {family}: its layers also need the embeddings of token ids"
                );
                return Err(Error::request("embeddings", message));
            }
            // Rows from an encoder are not scaled, and have no tokens.
            Input::Embeddings(rows) => (rows.as_dtype(self.dtype)?, None),
        };
        let inputs = self.per_layer_inputs.as_ref().zip(reads_tokens).map(|(inputs, tokens)| {
            let tokens = match batch.input() {
                Input::Pictured { places, .. } => &inputs.without_pictures(tokens, places)?,
                _ => tokens,
            };
            inputs.forward(tokens, &hidden, self.dtype)
        });
        let per_layer_inputs = inputs.transpose()?;
        let hidden = self.altup.as_ref().map_or_else(|| Ok(hidden.clone()), |altup| altup.split(&hidden))?;
        Ok(Pass { batch, rotary: Vec::new(), per_layer_inputs, deepstack: deep, hidden, layer: 0 })
    }

    /// Maps tokens `[T]` to `[T, hidden]`.
    fn embedded(&self, tokens: &Array) -> Result<Array> {
        let rows = self.embedding.rows(tokens)?;
        let rows = self.embedding_norm.map_or_else(|| Ok(rows.clone()), |norm| norm.plain(&rows))?;
        Ok(match self.embedding_scale {
            Some(scale) => multiply(&rows, scalar_like(scale, &rows)?)?,
            None => rows,
        })
    }

    /// Maps `[R, hidden]`, or as many streams of it, to `[R, hidden]`.
    pub(super) fn normalized(&self, hidden: &Array) -> Result<Array> {
        match &self.altup {
            Some(altup) => self.norm.forward(&altup.mean(hidden)?),
            None => self.norm.forward(hidden),
        }
    }

    /// Maps `[R, hidden]` to `[R, vocabulary]`.
    pub(super) fn logits(&self, hidden: &Array) -> Result<Array> {
        self.head_config.logits(self.head.forward(&self.normalized(hidden)?)?)
    }
}

/// Replaces the rows of `embedded`, `[T, hidden]`, at `places` with `rows`, `[R, hidden]`. Places are in ascending order.
fn with_rows(embedded: &Array, rows: &Array, places: &[usize]) -> Result<Array> {
    let width = embedded.dim(0);
    let mut sources: Vec<i32> = (0..width).collect();
    for (row, &place) in places.iter().enumerate() {
        sources[place] = width + row as i32;
    }
    let all = concatenate(&[embedded, &rows.as_dtype(embedded.dtype())?], 0)?;
    Ok(all.take_axis(Array::from_slice(&sources, &[width]), 0)?)
}
