//! The decoder of Whisper: layers that attend to the earlier tokens, then to the encoded audio.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::add;
use mlx_rs::transforms::eval;

use super::attention::{KeysValues, WhisperAttention};
use super::config::WhisperConfig;
use super::encoder::{EncodedAudio, NORM, WhisperFeedForward};
use crate::array::{Rows, from_tokens, host, slice_axis, take_rows};
use crate::error::{Error, Result};
use crate::model::embedding::Embedding;
use crate::model::linear::Linear;
use crate::model::norm::Norm;
use crate::speech::AlignmentMatrix;
use crate::weights::Weights;

/// The layers whose keys and values of the audio are computed at once. They take about as long as a layer of the encoder.
const LISTENING_LAYERS: usize = 6;

/// The decoder with its weights.
pub(super) struct TextDecoder {
    embedding: Embedding,
    head: Linear,
    /// `[target_positions, hidden]`
    positions: Array,
    pub(super) layers: Vec<DecoderLayer>,
    norm: Norm,
    target_positions: usize,
    /// The heads of each layer whose attention follows the spoken words.
    alignment_heads: Vec<Vec<i32>>,
}

/// The keys and values of the tokens so far. Clones share them.
#[derive(Clone)]
pub struct DecoderState {
    layers: Vec<Option<KeysValues>>,
}

/// A layer with its weights.
pub(super) struct DecoderLayer {
    self_norm: Norm,
    self_attention: WhisperAttention,
    cross_norm: Norm,
    cross_attention: WhisperAttention,
    feed_forward: WhisperFeedForward,
}

impl DecoderState {
    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.layers.first().and_then(Option::as_ref).map_or(0, KeysValues::len)
    }

    /// Returns true if it has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl TextDecoder {
    pub(super) fn load(
        weights: &mut Weights,
        config: &WhisperConfig,
        alignment_heads: Vec<Vec<i32>>,
    ) -> Result<Self> {
        let (hidden, stack, name) = (config.hidden_size, config.decoder, "model.decoder");
        let embedding = Embedding::load(weights, &format!("{name}.embed_tokens"), config.vocab_size, hidden)?;
        let widths = [hidden, stack.intermediate_size];
        let layer = |index: usize| -> Result<DecoderLayer> {
            let name = format!("{name}.layers.{index}");
            let of = |part: &str| format!("{name}.{part}");
            Ok(DecoderLayer {
                self_norm: Norm::load(weights, &of("self_attn_layer_norm"), hidden, NORM)?,
                self_attention: WhisperAttention::load(weights, &of("self_attn"), hidden, stack.heads)?,
                cross_norm: Norm::load(weights, &of("encoder_attn_layer_norm"), hidden, NORM)?,
                cross_attention: WhisperAttention::load(weights, &of("encoder_attn"), hidden, stack.heads)?,
                feed_forward: WhisperFeedForward::load(weights, &name, widths, config.activation)?,
            })
        };
        let layers = (0..stack.layers).map(layer).collect::<Result<_>>()?;
        let table = format!("{name}.embed_positions.weight");
        Ok(Self {
            head: embedding.head(None)?,
            embedding,
            positions: weights.take(&table, &[config.target_positions, hidden])?,
            layers,
            norm: Norm::load(weights, &format!("{name}.layer_norm"), hidden, NORM)?,
            target_positions: config.target_positions,
            alignment_heads,
        })
    }

    /// Returns the state before the first token.
    pub(super) fn new_state(&self) -> DecoderState {
        DecoderState { layers: vec![None; self.layers.len()] }
    }

    /// Computes the keys and values of the encoder's output, `[SOURCE_POSITIONS, hidden]`, for a few layers after those in `heard`.
    pub(super) fn listen(&self, audio: &Array, heard: &mut Vec<KeysValues>) -> Result<()> {
        let of_layer = |layer: &DecoderLayer| layer.cross_attention.keys_values(audio);
        let next = self.layers.iter().skip(heard.len()).take(LISTENING_LAYERS);
        let next = next.map(of_layer).collect::<Result<Vec<_>>>()?;
        eval(next.iter().flat_map(KeysValues::arrays))?;
        heard.extend(next);
        Ok(())
    }

    /// Reads tokens. Returns the logits after those at the indices `rows`.
    pub(super) fn forward(
        &self,
        tokens: &[u32],
        rows: &[usize],
        audio: &EncodedAudio,
        state: &mut DecoderState,
    ) -> Result<Rows> {
        let mut hidden = self.embed(tokens, state.len())?;
        for ((layer, past), audio) in self.layers.iter().zip(&mut state.layers).zip(&audio.0) {
            hidden = layer.forward(&hidden, past, audio)?;
        }
        Rows::new(&self.head.forward(&self.norm.forward(&take_rows(&hidden, rows)?)?)?)
    }

    /// Reads tokens from the start. Returns the matrix of the rows in `rows` and of the first `positions` of the audio.
    pub(super) fn align(
        &self,
        tokens: &[u32],
        rows: Range<usize>,
        audio: &EncodedAudio,
        positions: usize,
    ) -> Result<AlignmentMatrix> {
        let mut hidden = self.embed(tokens, 0)?;
        let mut matrix = AlignmentMatrix::new(rows.len(), positions);
        let last = self.alignment_heads.iter().rposition(|heads| !heads.is_empty());
        let layers = self.layers.iter().zip(&audio.0).zip(&self.alignment_heads);
        for ((layer, audio), heads) in layers.take(last.map_or(0, |last| last + 1)) {
            let attended = layer.attend_to_tokens(&hidden, &mut None)?;
            let normed = layer.cross_norm.forward(&attended)?;
            hidden = layer.listen(&attended, &normed, audio)?;
            if !heads.is_empty() {
                let part = (heads.as_slice(), positions as i32);
                let weights = layer.cross_attention.normed_weights(&normed, audio, part)?;
                let weights = slice_axis(&weights, 1, rows.start as i32, rows.end as i32)?;
                matrix.add(host::<f32>(&weights.contiguous()?)?);
            }
        }
        Ok(matrix)
    }

    /// Returns the embeddings of tokens after the first `start` ones.
    fn embed(&self, tokens: &[u32], start: usize) -> Result<Array> {
        let end = start + tokens.len();
        if tokens.is_empty() || end > self.target_positions {
            let message =
                format!("a window of {end} tokens was decoded; the model has {}", self.target_positions);
            return Err(Error::Internal(message));
        }
        let positions = slice_axis(&self.positions, 0, start as i32, end as i32)?;
        Ok(add(self.embedding.rows(&from_tokens(tokens))?, positions)?)
    }
}

impl DecoderLayer {
    fn forward(&self, input: &Array, past: &mut Option<KeysValues>, audio: &KeysValues) -> Result<Array> {
        let hidden = self.attend_to_tokens(input, past)?;
        self.listen(&hidden, &self.cross_norm.forward(&hidden)?, audio)
    }

    fn attend_to_tokens(&self, input: &Array, past: &mut Option<KeysValues>) -> Result<Array> {
        let normed = self.self_norm.forward(input)?;
        Ok(add(input, self.self_attention.attend_causally(&normed, past)?)?)
    }

    fn listen(&self, hidden: &Array, normed: &Array, audio: &KeysValues) -> Result<Array> {
        let hidden = add(hidden, self.cross_attention.attend(normed, audio)?)?;
        self.feed_forward.forward(&hidden)
    }
}
