//! The files that configure image processing. Settings that would change pixels and are not supported are rejected by name.

use std::path::Path;

use mlx_image::Limits;
use mlx_image::sizes::Size;

use crate::config::Fields;
use crate::error::Result;

/// Returns the settings of the image processor, if the folder has any.
pub(crate) fn image_processor(folder: &Path) -> Result<Option<Fields>> {
    section(folder, "image_processor")
}

/// Returns the settings of one kind of media, if the folder has any. As in transformers 5, the section `name` of processor_config.json has
/// priority over preprocessor_config.json, which newer tools no longer write.
pub(super) fn section(folder: &Path, name: &str) -> Result<Option<Fields>> {
    let nested = processor(folder)?.map(|all| all.section(name)).transpose()?.flatten();
    match nested {
        Some(nested) => Ok(Some(nested)),
        None => Fields::read_optional(&folder.join("preprocessor_config.json")),
    }
}

/// Returns the settings in processor_config.json, if the folder has it.
pub(super) fn processor(folder: &Path) -> Result<Option<Fields>> {
    Fields::read_optional(&folder.join("processor_config.json"))
}

/// Rejects an image processor that skips one of these steps or has another scale.
pub(super) fn expect_steps(settings: &Fields, steps: &[&str]) -> Result<()> {
    for key in steps {
        if settings.optional_flag(key)? == Some(false) {
            return Err(settings.error(key, "is false; this step is always done"));
        }
    }
    match settings.optional_number("rescale_factor")? {
        Some(factor) if (factor * 255.0 - 1.0).abs() > 1e-6 => {
            Err(settings.error("rescale_factor", format_args!("is {factor}; only 1/255 is supported")))
        }
        _ => Ok(()),
    }
}

/// Rejects a size that differs from the one in config.json.
pub(super) fn expect_size(settings: &Fields, key: &str, size: usize) -> Result<()> {
    match settings.optional_size(key)? {
        Some(other) if other != size => {
            Err(settings.error(key, format_args!("is {other}, but config.json has {size}")))
        }
        _ => Ok(()),
    }
}

/// A limit of picture sizes and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SizeLimit {
    pub(super) value: u64,
    /// The file and key of the limit.
    source: String,
}

impl SizeLimit {
    /// Reads the limit under `key`, if present.
    pub(super) fn read(settings: &Fields, key: &str) -> Result<Option<Self>> {
        let value = settings.optional_size(key)?;
        Ok(value.map(|value| Self { value: value as u64, source: settings.location(key) }))
    }

    /// Returns the limit of a key that no file has.
    pub(super) fn usual(key: &str, value: u64) -> Self {
        Self { value, source: format!("the default of {key}") }
    }

    /// Reads the limit from the section `size` of the settings; the default is `usual`.
    pub(super) fn of_size(settings: Option<&Fields>, key: &str, usual: u64) -> Result<Self> {
        match settings.map(|settings| settings.section("size")).transpose()?.flatten() {
            Some(size) => Self::read(&size, key)?.ok_or_else(|| size.error(key, "is missing")),
            None => Ok(Self::usual(&format!("size.{key}"), usual)),
        }
    }

    /// Rejects a size allowed by this limit that takes more memory than a decoded picture may.
    pub(super) fn bound(&self, (height, width): Size) -> Result<Size, mlx_image::Error> {
        let limit = Limits::default().pixels;
        if u64::from(height) * u64::from(width) <= limit {
            return Ok((height, width));
        }
        let source = self.source.clone();
        Err(mlx_image::Error::Resized { width, height, limit, rule: format!("{source} is {}", self.value) })
    }
}
