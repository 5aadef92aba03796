//! The config of a Whisper model, in the keys of transformers or of the original.

use crate::config::Fields;
use crate::error::Result;
use crate::model::activation::Activation;

/// The positions that the encoder has for 30 seconds: one for every two frames.
pub(super) const SOURCE_POSITIONS: usize = 1500;

/// The config of a Whisper model.
#[derive(Debug, Clone, PartialEq)]
pub struct WhisperConfig {
    /// The number of token ids.
    pub vocab_size: usize,
    /// The mel bins of a frame.
    pub mel_bins: usize,
    /// The width of the residual streams.
    pub hidden_size: usize,
    /// The layers of the encoder.
    pub encoder: WhisperStack,
    /// The layers of the decoder.
    pub decoder: WhisperStack,
    /// The maximum number of tokens of a window, with its prompt.
    pub target_positions: usize,
    /// The activation function.
    pub(super) activation: Activation,
}

/// The layers of the encoder or the decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WhisperStack {
    /// The number of layers.
    pub layers: usize,
    /// The number of heads.
    pub heads: usize,
    /// The width of feed-forward blocks.
    pub intermediate_size: usize,
}

impl WhisperConfig {
    pub(super) fn read(fields: &Fields) -> Result<Self> {
        if fields.has("n_mels") {
            return Self::read_original(fields);
        }
        let stack = |side: &str| -> Result<WhisperStack> {
            Ok(WhisperStack {
                layers: fields.size(&format!("{side}_layers"))?,
                heads: fields.size(&format!("{side}_attention_heads"))?,
                intermediate_size: fields.size(&format!("{side}_ffn_dim"))?,
            })
        };
        let size = |key: &str, default: usize| -> Result<usize> {
            Ok(fields.optional_size(key)?.unwrap_or(default))
        };
        let name = fields.optional_text("activation_function")?.unwrap_or("gelu");
        let unknown = || fields.error("activation_function", format!("{name:?} is not supported"));
        let config = Self {
            vocab_size: fields.size("vocab_size")?,
            mel_bins: size("num_mel_bins", 80)?,
            hidden_size: fields.size("d_model")?,
            encoder: stack("encoder")?,
            decoder: stack("decoder")?,
            target_positions: size("max_target_positions", 448)?,
            activation: Activation::named(name).ok_or_else(unknown)?,
        };
        if fields.optional_flag("scale_embedding")?.unwrap_or(false) {
            return Err(fields.error("scale_embedding", "is true, which is not supported"));
        }
        let source = size("max_source_positions", SOURCE_POSITIONS)?;
        config.checked(fields, ["max_source_positions", "num_mel_bins", "d_model"], source)
    }

    /// Reads the keys of the original.
    fn read_original(fields: &Fields) -> Result<Self> {
        let hidden_size = fields.size("n_audio_state")?;
        if fields.size("n_text_state")? != hidden_size {
            return Err(fields.error("n_text_state", format!("must equal n_audio_state, {hidden_size}")));
        }
        let stack = |side: &str| -> Result<WhisperStack> {
            Ok(WhisperStack {
                layers: fields.size(&format!("n_{side}_layer"))?,
                heads: fields.size(&format!("n_{side}_head"))?,
                intermediate_size: 4 * hidden_size,
            })
        };
        let config = Self {
            vocab_size: fields.size("n_vocab")?,
            mel_bins: fields.size("n_mels")?,
            hidden_size,
            encoder: stack("audio")?,
            decoder: stack("text")?,
            target_positions: fields.size("n_text_ctx")?,
            activation: Activation::Gelu,
        };
        let source = fields.size("n_audio_ctx")?;
        config.checked(fields, ["n_audio_ctx", "n_mels", "n_audio_state"], source)
    }

    /// Checks the values under these keys of the positions of the encoder, the mel bins and the width.
    fn checked(self, fields: &Fields, [positions, bins, width]: [&str; 3], source: usize) -> Result<Self> {
        if source != SOURCE_POSITIONS {
            let message = format!(
                "is {source}; only windows of 30 seconds are supported, {SOURCE_POSITIONS} positions"
            );
            return Err(fields.error(positions, message));
        }
        if self.mel_bins > 512 {
            return Err(fields.error(bins, format!("is {}; at most 512 are supported", self.mel_bins)));
        }
        if self.target_positions < 8 {
            let message = format!("allows {} tokens; a window needs at least 8", self.target_positions);
            return Err(fields.error("max_target_positions", message));
        }
        for heads in [self.encoder.heads, self.decoder.heads] {
            if !self.hidden_size.is_multiple_of(heads) {
                let message = format!("is {}; it must be a multiple of the {heads} heads", self.hidden_size);
                return Err(fields.error(width, message));
            }
        }
        Ok(self)
    }
}
