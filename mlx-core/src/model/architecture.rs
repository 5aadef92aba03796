//! The architecture of a model: a decoder, which generates text; an encoder, in which every token of a text attends to
//! all others; or Whisper, which recognizes speech.

use super::config::DecoderConfig;
use super::encoder::{self, EncoderConfig};
use super::family;
use super::whisper::{self, WhisperConfig};
use crate::config::Fields;
use crate::error::Result;

/// The key of config.json by which vLLM computes the head of a classifier from the rows of two tokens. The files are those of a decoder.
pub(crate) const VLLM_KEY: &str = "is_original_qwen3_reranker";

/// The config of a model.
#[derive(Debug, Clone, PartialEq)]
pub enum Architecture {
    /// Generates text.
    Decoder(DecoderConfig),
    /// Maps a text to a vector, or a pair of texts to scores.
    Encoder(EncoderConfig),
    /// Turns speech into text.
    Whisper(WhisperConfig),
}

impl Architecture {
    /// Reads the architecture in config.json, and the name of its family.
    pub fn read(fields: &Fields) -> Result<(String, Self)> {
        if let Some((family, config)) = encoder::read(fields)? {
            return Ok((family, Self::Encoder(config)));
        }
        if let Some(config) = whisper::read(fields)? {
            return Ok((whisper::FAMILY.to_owned(), Self::Whisper(config)));
        }
        let (family, config) = family::read(fields)?;
        let is_original = fields.optional_flag(VLLM_KEY)?.unwrap_or(false);
        if fields.strings("architectures")?.iter().any(|name| name.ends_with("Classification"))
            && !is_original
        {
            let message = format!("names a classification head, which is not supported for {family}");
            return Err(fields.error("architectures", message));
        }
        Ok((family, Self::Decoder(config)))
    }

    /// Returns the names of all supported families.
    pub fn names() -> impl Iterator<Item = &'static str> {
        family::names().chain(encoder::names()).chain([whisper::FAMILY])
    }
}
