//! The files that describe how pictures are prepared. What would change pixels and is not supported is refused by name.

use std::path::Path;

use mlx_image::Limits;
use mlx_image::sizes::Size;

use crate::config::Fields;
use crate::error::Result;

/// Returns the settings of the image processor, if the folder has any. As in transformers 5, the section `image_processor` of
/// processor_config.json wins over preprocessor_config.json, which newer tools no longer write.
pub(crate) fn image_processor(folder: &Path) -> Result<Option<Fields>> {
    let nested = processor(folder)?.map(|all| all.section("image_processor")).transpose()?.flatten();
    match nested {
        Some(nested) => Ok(Some(nested)),
        None => Fields::read_optional(&folder.join("preprocessor_config.json")),
    }
}

/// Returns the settings in processor_config.json, if the folder has it.
pub(super) fn processor(folder: &Path) -> Result<Option<Fields>> {
    Fields::read_optional(&folder.join("processor_config.json"))
}

/// Refuses an image processor that leaves out one of these steps or has another scale.
pub(super) fn expect_steps(settings: &Fields, steps: &[&str]) -> Result<()> {
    for key in steps {
        if settings.optional_flag(key)? == Some(false) {
            return Err(settings.error(key, "is false; this step is always done"));
        }
    }
    match settings.optional_number("rescale_factor")? {
        Some(factor) if (factor * 255.0 - 1.0).abs() > 1e-6 => {
            Err(settings.error("rescale_factor", format_args!("is {factor}; 1/255 alone is supported")))
        }
        _ => Ok(()),
    }
}

/// Refuses a size that is not the one in config.json.
pub(super) fn expect_size(settings: &Fields, key: &str, size: usize) -> Result<()> {
    match settings.optional_size(key)? {
        Some(other) if other != size => {
            Err(settings.error(key, format_args!("is {other}, where config.json says {size}")))
        }
        _ => Ok(()),
    }
}

/// A limit for sizes, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SizeLimit {
    pub(super) value: u64,
    /// Its file and key.
    source: String,
}

impl SizeLimit {
    /// The limit under `key`, if it is there.
    pub(super) fn read(settings: &Fields, key: &str) -> Result<Option<Self>> {
        let value = settings.optional_size(key)?;
        Ok(value.map(|value| Self { value: value as u64, source: settings.place(key) }))
    }

    /// The same where the section `size` of the settings holds it if it is there, which it may be without.
    pub(super) fn of_size(settings: Option<&Fields>, key: &str, usual: u64) -> Result<Self> {
        match settings.map(|settings| settings.section("size")).transpose()?.flatten() {
            Some(size) => Self::read(&size, key)?.ok_or_else(|| size.error(key, "is missing")),
            None => Ok(Self { value: usual, source: format!("the default of size.{key}") }),
        }
    }

    /// Refuses a size that follows from this limit and takes more memory than a decoded picture may.
    pub(super) fn bound(&self, (height, width): Size) -> Result<Size, mlx_image::Error> {
        let limit = Limits::default().pixels;
        if u64::from(height) * u64::from(width) <= limit {
            return Ok((height, width));
        }
        let source = self.source.clone();
        Err(mlx_image::Error::Resized { width, height, limit, rule: format!("{source} is {}", self.value) })
    }
}
