//! The architecture of a model: a decoder, which generates text, or an encoder, in which every token of a text attends to all others.

use super::config::DecoderConfig;
use super::encoder::{self, EncoderConfig};
use super::family;
use crate::config::Fields;
use crate::error::Result;

/// The config of a model.
#[derive(Debug, Clone, PartialEq)]
pub enum Architecture {
    /// Generates text.
    Decoder(DecoderConfig),
    /// Maps a text to a vector, or a pair of texts to scores.
    Encoder(EncoderConfig),
}

impl Architecture {
    /// Reads the architecture in config.json, and the name of its family.
    pub fn read(fields: &Fields) -> Result<(String, Self)> {
        if let Some((family, config)) = encoder::read(fields)? {
            return Ok((family, Self::Encoder(config)));
        }
        let (family, config) = family::read(fields)?;
        Ok((family, Self::Decoder(config)))
    }

    /// Returns the names of all supported families.
    pub fn names() -> impl Iterator<Item = &'static str> {
        family::names().chain(encoder::names())
    }
}
