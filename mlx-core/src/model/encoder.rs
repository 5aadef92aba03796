//! Encoders: a text is one span in which every token attends to all others, without a cache.

mod batch;
mod classifier;
mod classifier_config;
mod config;
mod embeddings;
mod families;
mod layer;
mod loading;
mod masks;
mod names;
mod pool;
mod spec;
mod text_encoder;
mod two_way;

pub use batch::TextTokens;
pub use config::{ClassifierConfig, ClassifierDense, EncoderConfig, PositionTable, RelativeBias};
pub(super) use loading::{inspect, load};
pub use names::EncoderNames;
pub use pool::PoolRow;
pub use spec::EncoderSpec;
pub use text_encoder::{EncodedTexts, TextEncoder, TextRows};

use crate::config::Fields;
use crate::error::Result;

/// Returns the names of the families that are encoders.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    families::FAMILIES.iter().flat_map(|(names, _)| names.iter().copied())
}

/// Reads the encoder config in config.json, and the name of its family. `None` if the model is no encoder.
pub(super) fn read(fields: &Fields) -> Result<Option<(String, EncoderConfig)>> {
    let Some(family) = fields.optional_text("model_type")? else { return Ok(None) };
    if let Some((_, read)) = families::FAMILIES.iter().find(|(names, _)| names.contains(&family)) {
        return Ok(Some((family.to_owned(), read(fields)?)));
    }
    two_way::read(fields)
}
