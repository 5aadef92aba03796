//! The processor of Qwen's towers: one token per square of patches. The template writes the tokens around a picture.

use chat_format::Pixels;
use mlx_image::sizes::{self, Size};

use super::files::{self, SizeLimit};
use super::grid;
use crate::config::Fields;
use crate::error::Result;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Qwen {
    /// Side of a merged patch in pixels. Each merged patch becomes one row.
    merged_patch: u32,
    min_pixels: SizeLimit,
    max_pixels: SizeLimit,
}

impl Qwen {
    pub(super) fn read(vision: &Fields, settings: Option<&Fields>) -> Result<Self> {
        let (patch, merge) = grid::patch_and_merge(vision, vision)?;
        if let Some(settings) = settings {
            files::expect_size(settings, "patch_size", patch)?;
            files::expect_size(settings, "merge_size", merge)?;
        }
        // Older files have the limits outside of `size`.
        let limit = |old: &str, key: &str, usual: u64| {
            let outer = settings.map(|settings| SizeLimit::read(settings, old)).transpose()?.flatten();
            outer.map_or_else(|| SizeLimit::of_size(settings, key, usual), Ok)
        };
        Ok(Self {
            merged_patch: (patch * merge) as u32,
            min_pixels: limit("min_pixels", "shortest_edge", 56 * 56)?,
            max_pixels: limit("max_pixels", "longest_edge", 28 * 28 * 1280)?,
        })
    }

    pub(super) fn size(&self, size: Size) -> Result<Size, mlx_image::Error> {
        let Self { merged_patch, min_pixels, max_pixels } = self;
        let grows = u64::from(size.0) * u64::from(size.1) < min_pixels.value;
        let limit = if grows { min_pixels } else { max_pixels };
        limit.bound(sizes::qwen(size, *merged_patch, min_pixels.value, max_pixels.value)?)
    }

    /// Returns the rows and columns of a picture.
    pub(super) fn grid(&self, image: &Pixels) -> Result<(usize, usize)> {
        grid::grid_of(image, self.merged_patch)
    }
}
