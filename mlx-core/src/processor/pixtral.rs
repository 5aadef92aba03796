//! The processor of Pixtral and Mistral 3: tokens for each row of patches, a break token between rows, an end token after the last one.

use std::path::Path;

use chat_format::Pixels;
use chat_format::text::Tokenizer;
use mlx_image::sizes::{self, Size};

use super::files::{self, SizeLimit};
use super::grid;
use crate::config::Fields;
use crate::error::{Error, Result};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pixtral {
    longest_edge: SizeLimit,
    /// Side of a merged patch in pixels. Each merged patch becomes one row.
    merged_patch: u32,
    image_break_token: u32,
    image_end_token: u32,
}

impl Pixtral {
    pub(super) fn read(
        folder: &Path,
        config: &Fields,
        vision: &Fields,
        settings: Option<&Fields>,
        tokenizer: &Tokenizer,
    ) -> Result<Self> {
        let (patch, merge) = grid::patch_and_merge(vision, config)?;
        // Patch sizes in the image processor's section are ignored.
        if let Some(processor) = files::processor(folder)? {
            files::expect_size(&processor, "patch_size", patch)?;
            files::expect_size(&processor, "spatial_merge_size", merge)?;
        }
        let token = |text: &str| {
            let missing = || format!("lacks the token {text}, which prompts with images need");
            tokenizer.id(text).ok_or_else(|| Error::file(folder.join("tokenizer.json"), missing()))
        };
        Ok(Self {
            longest_edge: SizeLimit::of_size(settings, "longest_edge", 1024)?,
            merged_patch: (patch * merge) as u32,
            image_break_token: token("[IMG_BREAK]")?,
            image_end_token: token("[IMG_END]")?,
        })
    }

    pub(super) fn size(&self, size: Size) -> Result<Size, mlx_image::Error> {
        self.longest_edge.bound(sizes::pixtral(size, self.longest_edge.value as u32, self.merged_patch)?)
    }

    /// Returns the rows and columns of a picture.
    pub(super) fn grid(&self, image: &Pixels) -> Result<(usize, usize)> {
        grid::grid_of(image, self.merged_patch)
    }

    pub(super) fn tokens(&self, image: &Pixels, image_token: u32) -> Result<Vec<u32>> {
        let (rows, columns) = self.grid(image)?;
        let mut tokens = Vec::with_capacity(rows * (columns + 1));
        for row in 1..=rows {
            tokens.extend(std::iter::repeat_n(image_token, columns));
            tokens.push(if row == rows { self.image_end_token } else { self.image_break_token });
        }
        Ok(tokens)
    }
}
