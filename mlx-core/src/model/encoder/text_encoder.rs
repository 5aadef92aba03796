//! The encoder of all families: from the tokens of texts to vectors or logits.

use mlx_rs::{Array, Dtype};

use super::batch::{Padded, TextTokens};
use super::classifier::Classifier;
use super::config::EncoderConfig;
use super::embeddings::Embeddings;
use super::layer::EncoderLayer;
use super::masks::{BiasTable, TextMasks};
use super::pool::{PoolRow, pooled};
use crate::array::Rows;
use crate::error::{Error, Result};
use crate::model::attention::TextShape;
use crate::model::norm::Norm;
use crate::model::rope::{LongRows, Ropes};
use crate::weights::{Tally, Weights};

/// The maximum bytes of scores that exist at the same time.
const SCORES: u64 = 256 << 20;

/// The minimum number of tokens whose scores are computed at once.
const FEWEST_QUERIES: u64 = 32;

/// An encoder with its weights.
pub struct TextEncoder {
    config: EncoderConfig,
    dtype: Dtype,
    embeddings: Embeddings,
    layers: Vec<EncoderLayer>,
    ropes: Ropes,
    bias: Option<BiasTable>,
    norm: Option<Norm>,
    classifier: Option<Classifier>,
    /// The bytes of a token's scores for each key; 0 if the device writes none.
    row_scores: u64,
}

/// The hidden states of texts after the last layer, `[texts, length, hidden]`. They may not be computed yet.
pub struct EncodedTexts(Array);

/// A result of each text, as rows of one array that may not be computed yet.
pub struct TextRows(Rows);

impl TextEncoder {
    /// Loads all tensors that `config` needs. Returns their totals too.
    pub(in crate::model) fn load(
        mut config: EncoderConfig,
        mut weights: Weights,
        row_scores: u64,
    ) -> Result<(Self, Tally)> {
        config.prepare(&mut weights)?;
        let (stack, dtype) = (&config.stack, weights.dtype());
        let embeddings = Embeddings::load(&mut weights, &config)?;
        let bias =
            config.relative_bias.map(|bias| BiasTable::load(&mut weights, bias, stack.attention.num_heads));
        let bias = bias.transpose()?;
        let layers = (0..stack.layers.len()).map(|index| EncoderLayer::load(&mut weights, &config, index));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        let norm =
            config.last_norm.then(|| Norm::load(&mut weights, "model.norm", stack.hidden_size, stack.norm));
        let norm = norm.transpose()?;
        let classifier = config.head.as_ref();
        let classifier =
            classifier.map(|head| Classifier::load(&mut weights, head, stack.hidden_size, stack.norm));
        let classifier = classifier.transpose()?;
        let ropes = Ropes::new(stack.layers.iter().map(|layer| layer.rope.as_ref()), weights.backend());
        let tally = weights.finish()?;
        Ok((Self { config, dtype, embeddings, layers, ropes, bias, norm, classifier, row_scores }, tally))
    }

    /// Runs texts, at least one, through all layers.
    pub fn encode(&self, texts: &[TextTokens]) -> Result<EncodedTexts> {
        let texts = Padded::new(texts);
        let (count, length) = (texts.count() as i32, texts.length as i32);
        let queries_at_once = queries_at_once(self.row_scores, texts.count(), texts.length) as i32;
        let shape = TextShape { texts: count, length, queries_at_once };
        let windows = || self.config.stack.layers.iter().map(|layer| layer.sliding_window);
        let masks = TextMasks::new(&texts, windows(), self.bias.as_ref(), self.dtype)?;
        let rotary = self.ropes.rotary(&texts.places(), &LongRows::None)?;
        let mut hidden = self.embeddings.forward(&texts)?;
        for (index, (layer, window)) in self.layers.iter().zip(windows()).enumerate() {
            let rotary = self.ropes.of_layer(&rotary, index);
            hidden = layer.forward(&hidden, shape, rotary, masks.of(window))?;
        }
        if let Some(norm) = &self.norm {
            hidden = norm.forward(&hidden)?;
        }
        Ok(EncodedTexts(hidden.reshape(&[count, length, -1])?))
    }

    /// Pools the hidden states of each text. All texts have equally many rows; a result is their concatenation.
    pub fn pooled(&self, texts: &EncodedTexts, rows: &[Vec<PoolRow>]) -> Result<TextRows> {
        let vectors = pooled(&texts.0, rows)?;
        TextRows::new(&vectors.reshape(&[vectors.dim(0), -1])?)
    }

    /// Returns the logits of the head. `rows` has the factors of the hidden states of each text.
    pub fn logits(&self, texts: &EncodedTexts, rows: &[Vec<PoolRow>]) -> Result<TextRows> {
        let classifier =
            self.classifier.as_ref().ok_or_else(|| Error::Internal("the encoder has no head".into()))?;
        let pooled = pooled(&texts.0, rows)?.reshape(&[rows.len() as i32, -1])?.as_dtype(self.dtype)?;
        TextRows::new(&classifier.forward(&pooled)?)
    }

    /// Returns true if the head reads the mean of the hidden states instead of the first one. `None` without a head.
    pub fn classifier_reads_mean(&self) -> Option<bool> {
        self.config.head.as_ref().map(|head| head.reads_mean)
    }
}

impl TextRows {
    fn new(rows: &Array) -> Result<Self> {
        Ok(Self(Rows::new(rows)?))
    }

    /// Starts the computation.
    pub fn start(&self) -> Result<()> {
        self.0.start()
    }

    /// Waits for the results of all texts, in order.
    pub fn wait(&self) -> Result<Vec<Vec<f32>>> {
        let width = self.0.width();
        Ok(self.0.values()?.chunks_exact(width).map(<[f32]>::to_vec).collect())
    }
}

/// Returns the number of tokens whose scores are computed at once, in a pass of this shape.
pub(super) fn queries_at_once(row_scores: u64, texts: usize, length: usize) -> usize {
    let bytes = row_scores * (texts * length) as u64;
    match SCORES.checked_div(bytes) {
        None => length,
        Some(queries) => (queries.max(FEWEST_QUERIES) as usize).min(length),
    }
}
