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
        let config = read(fields)?;
        return expect_one_rope(fields, &config).map(|()| Some((family.to_owned(), config)));
    }
    let read = two_way::read(fields)?;
    read.as_ref().map_or(Ok(()), |(_, config)| expect_one_rope(fields, config))?;
    Ok(read)
}

/// Rejects ropes that depend on the length of a text: the texts of a pass share their frequencies.
fn expect_one_rope(fields: &Fields, config: &EncoderConfig) -> Result<()> {
    let mut ropes = config.stack.layers.iter().filter_map(|layer| layer.rope.as_ref());
    if ropes.any(|rope| rope.short_context().is_some()) {
        let message = "has the type longrope, which is not supported for encoders";
        return Err(fields.error("rope_scaling", message));
    }
    Ok(())
}
