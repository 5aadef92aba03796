//! How a model that sees takes pictures: the size that it wants, and the tokens that stand for one in the prompt. Invariant: pure; it knows
//! config files and no device.

mod files;
mod gemma4;
mod grid;
mod pixtral;
mod qwen;

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use chat_format::text::Tokenizer;
use chat_format::{Image, Pixels};
use mlx_image::{Filter, resize};

use self::gemma4::Gemma4;
use self::pixtral::Pixtral;
use self::qwen::Qwen;
use crate::config::Fields;
use crate::error::{Error, Result};

pub(crate) use files::image_processor;

/// The processor of a model that sees.
#[derive(Debug, Clone, PartialEq)]
pub struct Processor {
    /// The token at whose places the rows of pictures stand.
    image_token: u32,
    /// Its text.
    image_token_text: String,
    filter: Filter,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Gemma4(Gemma4),
    Pixtral(Pixtral),
    Qwen(Qwen),
}

/// Why a model cannot be given pictures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoImages {
    /// It reads text alone, or its tower is not supported: a request with pictures is wrong.
    Unsupported(String),
    /// Its tower, or a file that describes it, cannot be used here: a request with pictures is right.
    Unusable(String),
}

impl NoImages {
    /// The error of a request with pictures.
    pub(crate) fn error(&self) -> Error {
        match self {
            Self::Unsupported(why) => Error::request("images", why.as_str()),
            Self::Unusable(why) => Error::Vision(why.clone()),
        }
    }
}

impl fmt::Display for NoImages {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Unsupported(why) | Self::Unusable(why) => out.write_str(why),
        }
    }
}

/// Families whose towers and processors are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VisionFamily {
    Gemma4,
    /// Of Gemma 4's model without a tower.
    Gemma4Unified,
    Pixtral,
    /// Of Qwen 3 VL and its successors.
    Qwen,
    /// Of Qwen 2 VL.
    Qwen2,
    /// Of Qwen 2.5 VL.
    Qwen25,
}

impl VisionFamily {
    /// That of a model of type `family`, by its `model_type`, with a tower of type `tower`; `None` if it cannot be given pictures yet.
    pub(crate) fn of(family: &str, tower: &str) -> Option<Self> {
        match (family, tower) {
            ("gemma4", _) => Some(Self::Gemma4),
            ("gemma4_unified", _) => Some(Self::Gemma4Unified),
            ("mistral3", "pixtral") => Some(Self::Pixtral),
            ("qwen3_vl" | "qwen3_vl_moe" | "qwen3_5" | "qwen3_5_moe", _) => Some(Self::Qwen),
            ("qwen2_vl", _) => Some(Self::Qwen2),
            ("qwen2_5_vl", _) => Some(Self::Qwen25),
            _ => None,
        }
    }
}

impl Processor {
    /// Reads what config.json and the files of the processor say; or why the model cannot be given pictures.
    pub(crate) fn load(folder: &Path, tokenizer: &Tokenizer) -> Result<Self, NoImages> {
        Self::read(folder, tokenizer).map_err(|error| match error {
            Error::Request { message, .. } => NoImages::Unsupported(message),
            other => NoImages::Unusable(other.to_string()),
        })
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
            Some(VisionFamily::Pixtral) => {
                Kind::Pixtral(Pixtral::read(folder, &config, &vision, settings, tokenizer)?)
            }
            Some(VisionFamily::Qwen | VisionFamily::Qwen2 | VisionFamily::Qwen25) => {
                Kind::Qwen(Qwen::read(&vision, settings)?)
            }
            None => {
                let message = format!("cannot be given to {family} yet, whose vision tower is not supported");
                return Err(Error::request("image", message));
            }
        };
        let image_token = image_token(&config)?;
        let image_token_text = tokenizer.token(image_token).ok_or_else(|| {
            config.error("image_token_index", format_args!("is {image_token}, which is no token"))
        })?;
        let resample = settings.map(|it| it.optional_count("resample")).transpose()?.flatten().unwrap_or(3);
        let filter = u32::try_from(resample).ok().and_then(Filter::numbered);
        let filter = filter.ok_or_else(|| {
            Error::file(
                folder,
                format!("resample of its image processor is {resample}; 1, 2 and 3 are supported"),
            )
        })?;
        Ok(Self { image_token, image_token_text, filter, kind })
    }

    /// The token at whose places the rows of pictures stand.
    pub fn image_token(&self) -> u32 {
        self.image_token
    }

    /// A picture in the size that the model wants.
    ///
    /// # Errors
    /// If it is damaged, larger than what is taken, or of a shape that the model does not take.
    pub fn resized(&self, image: &Image) -> Result<Pixels, mlx_image::Error> {
        let picture = image.picture()?;
        let from = (picture.height(), picture.width());
        let (height, width) = match &self.kind {
            Kind::Gemma4(gemma4) => gemma4.size(from)?,
            Kind::Pixtral(pixtral) => pixtral.size(from)?,
            Kind::Qwen(qwen) => qwen.size(from)?,
        };
        Ok(match picture {
            picture if (height, width) != from => resize(&picture, width, height, self.filter).into(),
            Cow::Owned(picture) => picture.into(),
            Cow::Borrowed(_) => image.pixels()?,
        })
    }

    /// How many rows a picture has, which is in the size that the model wants.
    pub fn rows(&self, image: &Pixels) -> Result<usize> {
        self.grid(image).map(|(rows, columns)| rows * columns)
    }

    /// The same as rows and columns of the picture.
    pub(crate) fn grid(&self, image: &Pixels) -> Result<(usize, usize)> {
        match &self.kind {
            Kind::Gemma4(gemma4) => gemma4.grid(image),
            Kind::Pixtral(pixtral) => pixtral.grid(image),
            Kind::Qwen(qwen) => qwen.grid(image),
        }
    }

    /// Whether the rows of a picture have positions in height and width, of which it takes as many as its longer side has.
    pub(crate) fn has_grid_positions(&self) -> bool {
        matches!(self.kind, Kind::Qwen(_))
    }

    /// Whether the rows of a picture see each other, so that it must not be divided.
    pub(crate) fn two_way(&self) -> bool {
        matches!(&self.kind, Kind::Gemma4(gemma4) if gemma4.two_way)
    }

    /// The tokens that stand for a picture, which is in the size that the model wants.
    fn tokens(&self, image: &Pixels) -> Result<Vec<u32>> {
        match &self.kind {
            Kind::Gemma4(gemma4) => gemma4.tokens(image, self.image_token),
            Kind::Pixtral(pixtral) => pixtral.tokens(image, self.image_token),
            Kind::Qwen(qwen) => {
                let (rows, columns) = qwen.grid(image)?;
                Ok(vec![self.image_token; rows * columns])
            }
        }
    }

    /// The tokens of a prompt in which each picture has the token of pictures once, as templates write them.
    pub(crate) fn expanded(&self, tokens: Vec<u32>, images: &[Pixels]) -> Result<Vec<u32>> {
        let places = tokens.iter().filter(|token| **token == self.image_token).count();
        if places != images.len() {
            let message = format!(
                "hold {} images, and their prompt has {places} places for images; {} in a text counts as one",
                images.len(),
                self.image_token_text
            );
            return Err(Error::request("messages", message));
        }
        let mut images = images.iter();
        let mut expanded = Vec::with_capacity(tokens.len());
        for token in tokens {
            match (token == self.image_token).then(|| images.next()).flatten() {
                Some(image) => expanded.extend(self.tokens(image)?),
                None => expanded.push(token),
            }
        }
        Ok(expanded)
    }
}

/// Newer configs call it an id.
fn image_token(config: &Fields) -> Result<u32> {
    for key in ["image_token_index", "image_token_id"] {
        if let [token] = config.token_ids(key)?[..] {
            return Ok(token);
        }
    }
    Err(config.error("image_token_index", "is missing; it names the token of pictures"))
}
