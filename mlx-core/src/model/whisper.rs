//! Whisper (Radford et al., 2022, arXiv:2212.04356): an encoder of 30 seconds of audio, and a decoder that also attends to its output.

mod alignment_heads;
mod attention;
mod config;
mod decoder;
mod encoder;
mod loading;
mod model;
mod names;
mod spec;

pub use config::{WhisperConfig, WhisperStack};
pub use decoder::DecoderState;
pub use encoder::{EncodedAudio, EncoderPass};
pub(super) use encoder::{NORM, WhisperFeedForward, sinusoids};
pub(super) use loading::{inspect, load};
pub use model::Whisper;
pub use spec::WhisperSpec;

use crate::config::Fields;
use crate::error::Result;

/// The family in config.json.
pub(super) const FAMILY: &str = "whisper";

/// Reads the config of a Whisper model. `None` if the model is of another family.
pub(super) fn read(fields: &Fields) -> Result<Option<WhisperConfig>> {
    let family = fields.optional_text("model_type")?;
    // Conversions from the original format have no other mark than the names of its dimensions.
    if family != Some(FAMILY) && !(family.is_none() && fields.has("n_mels") && fields.has("n_audio_ctx")) {
        return Ok(None);
    }
    WhisperConfig::read(fields).map(Some)
}
