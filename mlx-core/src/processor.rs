//! The processors of multimodal models: the sizes of pictures and the frames of audio that a model needs, and their tokens in the prompt.
//! Invariant: pure. It reads config files and uses no device.

mod audio;
mod clip;
mod files;
mod gemma4;
mod grid;
mod lfm2;
mod no_media;
mod pixtral;
mod placeholders;
mod qwen;
mod resized;

use std::borrow::Cow;
use std::path::Path;

use chat_format::text::Tokenizer;
use chat_format::{Image, Pixels};
use mlx_image::{Filter, resize};

use self::gemma4::Gemma4;
use self::lfm2::Lfm2;
use self::pixtral::Pixtral;
use self::placeholders::expand;
use self::qwen::Qwen;
use crate::config::Fields;
use crate::error::{Error, Result};

pub use audio::AudioProcessor;
pub use clip::AudioClip;
pub(crate) use clip::{CHUNK_FRAMES, ClipFrames};
pub(crate) use files::image_processor;
pub use no_media::{NoMedia, NoTowers};
pub use resized::ResizedPicture;

/// The image processor of a multimodal model.
#[derive(Debug, Clone, PartialEq)]
pub struct Processor {
    /// The placeholder token of the rows of pictures.
    image_token: u32,
    /// Its text.
    image_token_text: String,
    filter: Filter,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Gemma4(Gemma4),
    Lfm2(Box<Lfm2>),
    Pixtral(Pixtral),
    Qwen(Qwen),
}

/// Families with similar towers and processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VisionFamily {
    Gemma4,
    /// Gemma 4's model without a tower.
    Gemma4Unified,
    /// SigLIP 2 with LFM2's projector.
    Lfm2,
    Pixtral,
    /// Qwen 3 VL and its successors.
    Qwen,
    /// Qwen 2 VL.
    Qwen2,
    /// Qwen 2.5 VL.
    Qwen25,
}

impl VisionFamily {
    /// Returns the family of a model with `model_type` `family` and a tower of type `tower`; `None` if its images are not supported yet.
    pub(crate) fn of(family: &str, tower: &str) -> Option<Self> {
        match (family, tower) {
            ("gemma4", _) => Some(Self::Gemma4),
            ("gemma4_unified", _) => Some(Self::Gemma4Unified),
            ("lfm2_vl", "siglip2_vision_model" | "") => Some(Self::Lfm2),
            ("mistral3", "pixtral") => Some(Self::Pixtral),
            ("qwen3_vl" | "qwen3_vl_moe" | "qwen3_5" | "qwen3_5_moe" | "prism_hadamard_qwen35", _) => {
                Some(Self::Qwen)
            }
            ("qwen2_vl", _) => Some(Self::Qwen2),
            ("qwen2_5_vl", _) => Some(Self::Qwen25),
            _ => None,
        }
    }
}

impl Processor {
    /// Reads the settings from config.json and the processor's files. An error is the reason why images are not supported.
    pub(crate) fn load(folder: &Path, tokenizer: &Tokenizer) -> Result<Self, NoMedia> {
        Self::read(folder, tokenizer).map_err(NoMedia::of)
    }

    fn read(folder: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let config = Fields::read(&folder.join("config.json"))?;
        let family = config.optional_text("model_type")?.unwrap_or_default();
        let Some(vision) = config.section("vision_config")? else {
            return Err(Error::request(
                "image",
                format!("cannot be given to {family}, which reads text alone"),
            ));
        };
        let settings = image_processor(folder)?;
        let settings = settings.as_ref();
        let tower = vision.optional_text("model_type")?.unwrap_or_default();
        let known = VisionFamily::of(family, tower);
        if let Some(settings) = settings {
            files::expect_steps(settings, &["do_resize", "do_rescale"])?;
            if !matches!(known, Some(VisionFamily::Gemma4 | VisionFamily::Gemma4Unified)) {
                files::expect_steps(settings, &["do_normalize"])?;
            }
        }
        let kind = match known {
            Some(family @ (VisionFamily::Gemma4 | VisionFamily::Gemma4Unified)) => {
                let unified = family == VisionFamily::Gemma4Unified;
                Kind::Gemma4(Gemma4::read(&config, &vision, settings, unified, tokenizer)?)
            }
            Some(VisionFamily::Lfm2) => {
                Kind::Lfm2(Box::new(Lfm2::read(folder, &config, &vision, settings, tokenizer)?))
            }
            Some(VisionFamily::Pixtral) => {
                Kind::Pixtral(Pixtral::read(folder, &config, &vision, settings, tokenizer)?)
            }
            Some(VisionFamily::Qwen | VisionFamily::Qwen2 | VisionFamily::Qwen25) => {
                Kind::Qwen(Qwen::read(&vision, settings)?)
            }
            None => {
                let message = format!("cannot be given to {family} yet: its vision tower is not supported");
                return Err(Error::request("image", message));
            }
        };
        let image_token = image_token(&config)?;
        let image_token_text = tokenizer.token(image_token).ok_or_else(|| {
            config.error("image_token_index", format_args!("is {image_token}, which is not a token"))
        })?;
        let usual = if known == Some(VisionFamily::Lfm2) { 2 } else { 3 };
        let resample =
            settings.map(|it| it.optional_count("resample")).transpose()?.flatten().unwrap_or(usual);
        let filter = u32::try_from(resample).ok().and_then(Filter::numbered);
        let filter = filter.ok_or_else(|| {
            Error::file(
                folder,
                format!("resample of the image processor is {resample}; it must be 1, 2 or 3"),
            )
        })?;
        Ok(Self { image_token, image_token_text, filter, kind })
    }

    /// The placeholder token of the rows of pictures.
    pub fn image_token(&self) -> u32 {
        self.image_token
    }

    /// Resizes a picture to the sizes that the model needs.
    ///
    /// # Errors
    /// Fails if the picture is damaged, too large, or of a shape that the model does not support.
    pub fn resized(&self, image: &Image) -> Result<ResizedPicture, mlx_image::Error> {
        let picture = image.picture()?;
        let from = (picture.height(), picture.width());
        let tiles = if let Kind::Lfm2(lfm2) = &self.kind { lfm2.tiles(from)? } else { None };
        let size = match &self.kind {
            Kind::Gemma4(gemma4) => gemma4.size(from)?,
            Kind::Lfm2(lfm2) => lfm2.size(from)?,
            Kind::Pixtral(pixtral) => pixtral.size(from)?,
            Kind::Qwen(qwen) => qwen.size(from)?,
        };
        let Some(((rows, columns), all)) = tiles else {
            return Ok(ResizedPicture::whole(match picture {
                picture if size != from => resize(&picture, size.1, size.0, self.filter).into(),
                Cow::Owned(picture) => picture.into(),
                Cow::Borrowed(_) => image.pixels()?,
            }));
        };
        let sized = |(height, width): (u32, u32)| resize(&picture, width, height, self.filter);
        let mut parts: Vec<Pixels> = sized(all).tiles(rows, columns).into_iter().map(Pixels::from).collect();
        if matches!(&self.kind, Kind::Lfm2(lfm2) if lfm2.use_thumbnail) {
            parts.push(sized(size).into());
        }
        Ok(ResizedPicture { parts, tiles: Some((rows as usize, columns as usize)) })
    }

    /// Returns the number of rows of a part of a picture, which must have the size that the model needs.
    pub fn rows(&self, image: &Pixels) -> Result<usize> {
        self.grid(image).map(|(rows, columns)| rows * columns)
    }

    /// Returns the number of rows of a picture as a grid: its rows and columns.
    pub(crate) fn grid(&self, image: &Pixels) -> Result<(usize, usize)> {
        match &self.kind {
            Kind::Gemma4(gemma4) => gemma4.grid(image),
            Kind::Lfm2(lfm2) => lfm2.grid(image),
            Kind::Pixtral(pixtral) => pixtral.grid(image),
            Kind::Qwen(qwen) => qwen.grid(image),
        }
    }

    /// Returns true if the rows of a picture have two-dimensional positions. A picture then takes as many positions as the longer side of its grid.
    pub(crate) fn has_grid_positions(&self) -> bool {
        matches!(self.kind, Kind::Qwen(_))
    }

    /// Returns true if the rows of a picture attend to each other, so that a picture must not be split.
    pub(crate) fn is_bidirectional(&self) -> bool {
        matches!(&self.kind, Kind::Gemma4(gemma4) if gemma4.is_bidirectional)
    }

    /// Returns the tokens for a picture.
    fn tokens(&self, picture: &ResizedPicture) -> Result<Vec<u32>> {
        if let Kind::Lfm2(lfm2) = &self.kind {
            return lfm2.tokens(picture, self.image_token);
        }
        let of_part = |image: &Pixels| match &self.kind {
            Kind::Gemma4(gemma4) => gemma4.tokens(image, self.image_token),
            Kind::Pixtral(pixtral) => pixtral.tokens(image, self.image_token),
            Kind::Lfm2(_) | Kind::Qwen(_) => Ok(vec![self.image_token; self.rows(image)?]),
        };
        Ok(picture.parts.iter().map(of_part).collect::<Result<Vec<_>>>()?.concat())
    }

    /// Expands a prompt with one placeholder token per picture, as templates write it, to the tokens of each picture.
    pub(crate) fn expanded(&self, tokens: Vec<u32>, images: &[ResizedPicture]) -> Result<Vec<u32>> {
        let mismatch = |places| {
            format!(
                "hold {} images, and their prompt has {places} placeholders for images; {} in a text counts as one",
                images.len(),
                self.image_token_text
            )
        };
        expand(tokens, self.image_token, images, mismatch, |image| self.tokens(image))
    }
}

/// Reads the placeholder token. Newer configs use `image_token_id`.
fn image_token(config: &Fields) -> Result<u32> {
    for key in ["image_token_index", "image_token_id"] {
        if let [token] = config.token_ids(key)?[..] {
            return Ok(token);
        }
    }
    Err(config.error("image_token_index", "is missing; it must be the id of the image placeholder token"))
}
