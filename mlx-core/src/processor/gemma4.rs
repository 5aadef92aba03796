//! Gemma 4's processor: the largest size with the aspect ratio within a number of tokens, and a token before and after the rows of a picture.

use chat_format::Pixels;
use chat_format::text::Tokenizer;
use mlx_image::sizes::{self, Size};

use super::files;
use super::grid;
use crate::config::Fields;
use crate::error::Result;

/// The supported row limits per picture. The towers were trained with these.
const MAX_SOFT_TOKENS: [usize; 5] = [70, 140, 280, 560, 1120];

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Gemma4 {
    patch_size: u32,
    pooling_kernel_size: u32,
    max_soft_tokens: u32,
    /// True if the rows of a picture attend to each other in layers with a window.
    pub(super) is_bidirectional: bool,
    boi_token: u32,
    eoi_token: u32,
}

impl Gemma4 {
    pub(super) fn read(
        config: &Fields,
        vision: &Fields,
        settings: Option<&Fields>,
        unified: bool,
        tokenizer: &Tokenizer,
    ) -> Result<Self> {
        let patch_size = grid::bounded(vision, "patch_size", 16)?;
        let pooling_kernel_size = grid::bounded(vision, "pooling_kernel_size", 3)?;
        let mut max_soft_tokens = 280;
        if let Some(settings) = settings {
            files::expect_size(settings, "patch_size", patch_size)?;
            files::expect_size(settings, "pooling_kernel_size", pooling_kernel_size)?;
            expect_no_norm(settings)?;
            max_soft_tokens = settings.optional_size("max_soft_tokens")?.unwrap_or(max_soft_tokens);
            if !MAX_SOFT_TOKENS.contains(&max_soft_tokens) {
                let message = format_args!("is {max_soft_tokens}; it must be one of {MAX_SOFT_TOKENS:?}");
                return Err(settings.error("max_soft_tokens", message));
            }
        }
        // The longest picture is a strip. The model without a tower has a position per row; towers have one per patch.
        let (longest, key, usual) = if unified {
            (max_soft_tokens, "mm_posemb_size", 1120)
        } else {
            (max_soft_tokens * pooling_kernel_size, "position_embedding_size", 10_240)
        };
        let positions = vision.optional_size(key)?.unwrap_or(usual);
        if positions < longest {
            let message = format_args!(
                "is {positions}; it must be at least {longest}, the length of the longest picture"
            );
            return Err(vision.error(key, message));
        }
        let text = config.section("text_config")?;
        // The reader of the text config rejects other values and has the same default.
        let is_given = text.as_ref().is_some_and(|text| text.contains_key("use_bidirectional_attention"));
        let seen = text.as_ref().map(|text| text.optional_text("use_bidirectional_attention")).transpose()?;
        let token = |key: &str, usual: u32| match config.token_ids(key)?[..] {
            [] if tokenizer.token(usual).is_some() => Ok(usual),
            [token] if tokenizer.token(token).is_some() => Ok(token),
            _ => Err(config.error(key, "is not a token of tokenizer.json; prompts with images need it")),
        };
        Ok(Self {
            patch_size: patch_size as u32,
            pooling_kernel_size: pooling_kernel_size as u32,
            max_soft_tokens: max_soft_tokens as u32,
            is_bidirectional: seen.flatten() == Some("vision") || unified && !is_given,
            boi_token: token("boi_token_id", 255_999)?,
            eoi_token: token("eoi_token_id", 258_882)?,
        })
    }

    pub(super) fn size(&self, size: Size) -> Result<Size, mlx_image::Error> {
        sizes::gemma4(size, self.patch_size, self.max_soft_tokens, self.pooling_kernel_size)
    }

    /// Returns the rows and columns of a picture.
    pub(super) fn grid(&self, image: &Pixels) -> Result<(usize, usize)> {
        grid::grid_of(image, self.patch_size * self.pooling_kernel_size)
    }

    pub(super) fn tokens(&self, image: &Pixels, image_token: u32) -> Result<Vec<u32>> {
        let (rows, columns) = self.grid(image)?;
        Ok([vec![self.boi_token], vec![image_token; rows * columns], vec![self.eoi_token]].concat())
    }
}

/// Rejects other normalization, because the tower itself normalizes colors from 0 to 1.
fn expect_no_norm(settings: &Fields) -> Result<()> {
    if settings.optional_flag("do_normalize")? != Some(true) {
        return Ok(());
    }
    for (key, identity) in [("image_mean", 0.0_f64), ("image_std", 1.0)] {
        let values = settings.numbers(key)?;
        if values.iter().any(|value| value.total_cmp(&identity).is_ne()) {
            let message =
                format_args!("is {values:?} and do_normalize is true; only {identity} is supported");
            return Err(settings.error(key, message));
        }
    }
    Ok(())
}
