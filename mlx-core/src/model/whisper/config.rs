//! The config of a Whisper model, in the keys of transformers or of the original.

use crate::config::Fields;
use crate::error::Result;
use crate::model::activation::Activation;

/// The positions that the encoder has for 30 seconds: one for every two frames.
pub(super) const SOURCE_POSITIONS: usize = 1500;

/// The largest size in a config. Products of a few such sizes fit 64 bits.
const MAX_SIZE: usize = 1 << 18;

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
                layers: size(fields, &format!("{side}_layers"))?,
                heads: size(fields, &format!("{side}_attention_heads"))?,
                intermediate_size: size(fields, &format!("{side}_ffn_dim"))?,
            })
        };
        let optional = |key: &str, default: usize| -> Result<usize> {
            if fields.has(key) { size(fields, key) } else { Ok(default) }
        };
        let name = fields.optional_text("activation_function")?.unwrap_or("gelu");
        let unknown = || fields.error("activation_function", format!("{name:?} is not supported"));
        let config = Self {
            vocab_size: size(fields, "vocab_size")?,
            mel_bins: optional("num_mel_bins", 80)?,
            hidden_size: size(fields, "d_model")?,
            encoder: stack("encoder")?,
            decoder: stack("decoder")?,
            target_positions: optional("max_target_positions", 448)?,
            activation: Activation::named(name).ok_or_else(unknown)?,
        };
        if fields.optional_flag("scale_embedding")?.unwrap_or(false) {
            return Err(fields.error("scale_embedding", "is true, which is not supported"));
        }
        let source = optional("max_source_positions", SOURCE_POSITIONS)?;
        let keys = ["max_source_positions", "num_mel_bins", "d_model", "max_target_positions"];
        config.checked(fields, keys, source)
    }

    /// Reads the keys of the original.
    fn read_original(fields: &Fields) -> Result<Self> {
        let hidden_size = size(fields, "n_audio_state")?;
        if size(fields, "n_text_state")? != hidden_size {
            return Err(fields.error("n_text_state", format!("must equal n_audio_state, {hidden_size}")));
        }
        let stack = |side: &str| -> Result<WhisperStack> {
            Ok(WhisperStack {
                layers: size(fields, &format!("n_{side}_layer"))?,
                heads: size(fields, &format!("n_{side}_head"))?,
                intermediate_size: 4 * hidden_size,
            })
        };
        let config = Self {
            vocab_size: size(fields, "n_vocab")?,
            mel_bins: size(fields, "n_mels")?,
            hidden_size,
            encoder: stack("audio")?,
            decoder: stack("text")?,
            target_positions: size(fields, "n_text_ctx")?,
            activation: Activation::Gelu,
        };
        let source = size(fields, "n_audio_ctx")?;
        config.checked(fields, ["n_audio_ctx", "n_mels", "n_audio_state", "n_text_ctx"], source)
    }

    /// Checks the values under these keys of the positions of the encoder, the mel bins, the width and the positions of the decoder.
    fn checked(
        self,
        fields: &Fields,
        [positions, bins, width, tokens]: [&str; 4],
        source: usize,
    ) -> Result<Self> {
        if source != SOURCE_POSITIONS {
            let message = format!(
                "is {source}; only windows of 30 seconds are supported, {SOURCE_POSITIONS} positions"
            );
            return Err(fields.error(positions, message));
        }
        if self.mel_bins > 512 {
            return Err(fields.error(bins, format!("is {}; at most 512 are supported", self.mel_bins)));
        }
        if self.target_positions < 16 {
            let message = format!("allows {} tokens; a window needs at least 16", self.target_positions);
            return Err(fields.error(tokens, message));
        }
        if !self.hidden_size.is_multiple_of(2) {
            return Err(fields.error(width, format!("is {}; it must be even", self.hidden_size)));
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

fn size(fields: &Fields, key: &str) -> Result<usize> {
    let size = fields.size(key)?;
    if size > MAX_SIZE {
        return Err(fields.error(key, format!("is {size}; at most {MAX_SIZE} is supported")));
    }
    Ok(size)
}
