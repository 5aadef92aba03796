//! The decoder of Whisper: layers that attend to the earlier tokens, then to the encoded audio.

use mlx_rs::Array;
use mlx_rs::ops::add;
use mlx_rs::transforms::eval;

use super::attention::{KeysValues, WhisperAttention};
use super::config::WhisperConfig;
use super::encoder::{EncodedAudio, NORM, WhisperFeedForward};
use crate::array::{Rows, from_tokens, slice_axis, take_rows};
use crate::error::{Error, Result};
use crate::model::embedding::Embedding;
use crate::model::linear::Linear;
use crate::model::norm::Norm;
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
    pub(super) fn load(weights: &mut Weights, config: &WhisperConfig) -> Result<Self> {
        let (hidden, stack, name) = (config.hidden_size, config.decoder, "model.decoder");
        let embedding = Embedding::load(weights, &format!("{name}.embed_tokens"), config.vocab_size, hidden)?;
        let layer = |index: usize| -> Result<DecoderLayer> {
            let name = format!("{name}.layers.{index}");
            let of = |part: &str| format!("{name}.{part}");
            Ok(DecoderLayer {
                self_norm: Norm::load(weights, &of("self_attn_layer_norm"), hidden, NORM)?,
                self_attention: WhisperAttention::load(weights, &of("self_attn"), hidden, stack.heads)?,
                cross_norm: Norm::load(weights, &of("encoder_attn_layer_norm"), hidden, NORM)?,
                cross_attention: WhisperAttention::load(weights, &of("encoder_attn"), hidden, stack.heads)?,
                feed_forward: WhisperFeedForward::load(weights, &name, config, stack.intermediate_size)?,
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
        let (start, end) = (state.len(), state.len() + tokens.len());
        if tokens.is_empty() || end > self.target_positions {
            let message =
                format!("a window of {end} tokens was decoded; the model has {}", self.target_positions);
            return Err(Error::Internal(message));
        }
        let positions = slice_axis(&self.positions, 0, start as i32, end as i32)?;
        let mut hidden = add(self.embedding.rows(&from_tokens(tokens))?, positions)?;
        for ((layer, past), audio) in self.layers.iter().zip(&mut state.layers).zip(&audio.0) {
            hidden = layer.forward(&hidden, past, audio)?;
        }
        Rows::new(&self.head.forward(&self.norm.forward(&take_rows(&hidden, rows)?)?)?)
    }
}

impl DecoderLayer {
    fn forward(&self, input: &Array, past: &mut Option<KeysValues>, audio: &KeysValues) -> Result<Array> {
        let normed = self.self_norm.forward(input)?;
        let hidden = add(input, self.self_attention.attend_causally(&normed, past)?)?;
        let normed = self.cross_norm.forward(&hidden)?;
        let hidden = add(&hidden, self.cross_attention.attend(&normed, audio)?)?;
        self.feed_forward.forward(&hidden)
    }
}
