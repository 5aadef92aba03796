//! The processor of Qwen's towers: the template writes what stands around a picture; a token stands for each square of patches.

use mlx_image::sizes::{self, Size};

use super::grid;
use crate::config::Fields;
use crate::error::Result;
use crate::image::Pixels;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Qwen {
    /// Pixels of a side of what becomes one row.
    merged_patch: u32,
    min_pixels: u64,
    max_pixels: u64,
}

impl Qwen {
    pub(super) fn read(vision: &Fields, settings: Option<&Fields>) -> Result<Self> {
        let size = settings.map(|settings| settings.section("size")).transpose()?.flatten();
        let limit = |old: &str, key: &str, usual: usize| -> Result<u64> {
            let outer = settings.map(|settings| settings.optional_size(old)).transpose()?.flatten();
            let inner = size.as_ref().map(|size| size.optional_size(key)).transpose()?.flatten();
            Ok(outer.or(inner).unwrap_or(usual) as u64)
        };
        Ok(Self {
            merged_patch: grid::side(vision, vision)?,
            min_pixels: limit("min_pixels", "shortest_edge", 56 * 56)?,
            max_pixels: limit("max_pixels", "longest_edge", 28 * 28 * 1280)?,
        })
    }

    pub(super) fn size(&self, size: Size) -> Result<Size, mlx_image::Error> {
        sizes::qwen(size, self.merged_patch, self.min_pixels, self.max_pixels)
    }

    /// Rows and columns of a picture.
    pub(super) fn grid(&self, image: &Pixels) -> Result<(usize, usize)> {
        grid::of(image, self.merged_patch)
    }
}
