//! The files that describe how pictures are prepared.

use std::path::Path;

use crate::config::Fields;
use crate::error::Result;

/// What preprocessor_config.json says, or the section of processor_config.json; `None` where there is neither.
pub(crate) fn image_processor(folder: &Path) -> Result<Option<Fields>> {
    if let Some(own) = Fields::read_optional(&folder.join("preprocessor_config.json"))? {
        return Ok(Some(own));
    }
    match Fields::read_optional(&folder.join("processor_config.json"))? {
        Some(all) => all.section("image_processor"),
        None => Ok(None),
    }
}
