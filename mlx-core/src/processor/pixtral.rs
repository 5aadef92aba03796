//! Pixtral's processor, also of Mistral 3: a row of tokens for each row of patches, a break between rows, an end behind the last one.

use mlx_image::sizes::{self, Size};

use super::grid;
use crate::config::Fields;
use crate::error::{Error, Result};
use crate::image::Pixels;
use crate::text::Tokenizer;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pixtral {
    longest_edge: u32,
    /// Pixels of a side of what becomes one row.
    merged_patch: u32,
    image_break_token: u32,
    image_end_token: u32,
}

impl Pixtral {
    pub(super) fn read(
        config: &Fields,
        vision: &Fields,
        settings: Option<&Fields>,
        tokenizer: &Tokenizer,
    ) -> Result<Self> {
        let size = settings.map(|settings| settings.section("size")).transpose()?.flatten();
        let longest_edge = size.map(|size| size.optional_size("longest_edge")).transpose()?.flatten();
        let token = |text: &str| {
            tokenizer.id(text).ok_or_else(|| {
                Error::request("image", format!("needs the token {text}, which the tokenizer lacks"))
            })
        };
        Ok(Self {
            longest_edge: longest_edge.unwrap_or(1024) as u32,
            merged_patch: grid::side(vision, config)?,
            image_break_token: token("[IMG_BREAK]")?,
            image_end_token: token("[IMG_END]")?,
        })
    }

    pub(super) fn size(&self, size: Size) -> Result<Size, mlx_image::Error> {
        sizes::pixtral(size, self.longest_edge, self.merged_patch)
    }

    /// Rows and columns of a picture.
    pub(super) fn grid(&self, image: &Pixels) -> Result<(usize, usize)> {
        grid::of(image, self.merged_patch)
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
