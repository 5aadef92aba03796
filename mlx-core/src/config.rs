//! The JSON files of a model folder, read by key.

use crate::error::Result;

/// A JSON object in a file. Its errors name the file and the key.
pub type Fields = mlx_files::Fields<crate::Error>;

/// Returns the section that has all other keys in the first files of Qwen3-ASR, or a copy of the config if it has no such section.
pub(crate) fn thinker(config: &Fields) -> Result<Fields> {
    Ok(config.section("thinker_config")?.unwrap_or_else(|| config.clone()))
}
