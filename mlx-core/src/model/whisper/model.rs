//! A loaded Whisper model.

use std::ops::Range;
use std::path::Path;

use super::alignment_heads;
use super::config::{SOURCE_POSITIONS, WhisperConfig};
use super::decoder::{DecoderState, TextDecoder};
use super::encoder::{AudioEncoder, EncodedAudio, EncoderPass};
use super::names;
use crate::array::Rows;
use crate::error::Result;
use crate::speech::AlignmentMatrix;
use crate::weights::{Tally, Weights};

/// A Whisper model with its weights.
pub struct Whisper {
    encoder: AudioEncoder,
    decoder: TextDecoder,
}

impl Whisper {
    /// Loads all tensors that `config` needs from the files of `folder`. Returns their totals too.
    pub(super) fn load(folder: &Path, config: &WhisperConfig, mut weights: Weights) -> Result<(Self, Tally)> {
        names::prepare(&mut weights);
        let encoder = AudioEncoder::load(&mut weights, config)?;
        let heads = alignment_heads::read(folder, &mut weights, config.decoder)?;
        let decoder = TextDecoder::load(&mut weights, config, heads)?;
        Ok((Self { encoder, decoder }, weights.finish()?))
    }

    /// Begins to encode the features of a window: 3000 frames, one after the other.
    pub fn begin(&self, features: &[f32]) -> Result<EncoderPass> {
        self.encoder.begin(features)
    }

    /// Computes the next layer of the encoder, and after the last one the keys and values of the next layers of the decoder. Returns the encoded
    /// window when it is complete.
    pub fn advance(&self, pass: &mut EncoderPass) -> Result<Option<EncodedAudio>> {
        if pass.layers < self.encoder.layers.len() {
            self.encoder.advance(pass)?;
            return Ok(None);
        }
        self.decoder.listen(&pass.hidden, &mut pass.heard)?;
        let is_complete = pass.heard.len() == self.decoder.layers.len();
        Ok(is_complete.then(|| EncodedAudio(std::mem::take(&mut pass.heard))))
    }

    /// Returns the decoder's state before the first token.
    pub fn new_state(&self) -> DecoderState {
        self.decoder.new_state()
    }

    /// Lets the decoder read tokens. Returns the logits after those at the indices `rows`, which are not computed yet.
    pub fn decode(
        &self,
        tokens: &[u32],
        rows: &[usize],
        audio: &EncodedAudio,
        state: &mut DecoderState,
    ) -> Result<Rows> {
        self.decoder.forward(tokens, rows, audio, state)
    }

    /// Lets the decoder read tokens from the start. Returns which positions of the audio the tokens at `rows` attend to, of the first `frames`
    /// frames.
    pub(crate) fn align(
        &self,
        tokens: &[u32],
        rows: Range<usize>,
        audio: &EncodedAudio,
        frames: usize,
    ) -> Result<AlignmentMatrix> {
        let positions = (frames / 2).clamp(1, SOURCE_POSITIONS);
        self.decoder.align(tokens, rows, audio, positions)
    }
}
