//! Decodes image files. Files are untrusted: the size in the header is checked before memory is allocated.

use std::io::Cursor;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader};

use crate::{Error, Picture, jpeg};

const FORMATS: [ImageFormat; 4] = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif];

/// The limits for one picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of the file.
    pub bytes: usize,
    /// Maximum width times height.
    pub pixels: u64,
}

impl Default for Limits {
    /// 32 MiB and 40 million pixels, enough for photos and screenshots.
    fn default() -> Self {
        Self { bytes: 32 << 20, pixels: 40_000_000 }
    }
}

impl Limits {
    /// Returns the maximum allocation of a decoder: pixels with four channels of 16 bits, and tables.
    fn allocation(&self) -> u64 {
        self.pixels.saturating_mul(8).saturating_add(16 << 20)
    }
}

/// Returns the media type of a file that [`decode`] supports, such as `image/png`. It is detected from the first bytes.
pub fn media_type(bytes: &[u8]) -> Option<&'static str> {
    let format = image::guess_format(bytes).ok();
    format.filter(|it| FORMATS.contains(it)).map(|it| it.to_mime_type())
}

/// Decodes png, jpeg, webp and the first frame of a gif. Applies the EXIF orientation and blends transparent pixels
/// over white.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Picture, Error> {
    if bytes.len() > limits.bytes {
        return Err(Error::Bytes { found: bytes.len(), limit: limits.bytes });
    }
    let format = image::guess_format(bytes).map_err(|_| Error::Format)?;
    if !FORMATS.contains(&format) {
        return Err(Error::Format);
    }
    let mut allowed = image::Limits::no_limits();
    allowed.max_alloc = Some(limits.allocation());
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    reader.limits(allowed.clone());
    let mut decoder = reader.into_decoder().map_err(damaged)?;
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if pixels == 0 || pixels > limits.pixels {
        return Err(Error::Pixels { width, height, limit: limits.pixels });
    }
    allowed.reserve(decoder.total_bytes()).map_err(damaged)?;
    decoder.set_limits(allowed).map_err(damaged)?;
    // Damaged EXIF data is no reason to reject a picture.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    if format == ImageFormat::Jpeg && !jpeg::is_complete(bytes) {
        return Err(Error::Damaged("the file ends before the end of the picture".to_owned()));
    }
    let mut shown = DynamicImage::from_decoder(decoder).map_err(damaged)?;
    shown.apply_orientation(orientation);
    let (width, height) = (shown.width(), shown.height());
    Picture::new(width, height, over_white(shown))
        .ok_or_else(|| Error::Damaged("the decoded size differs from the size in the header".to_owned()))
}

#[expect(clippy::needless_pass_by_value, reason = "the form that map_err takes")]
fn damaged(error: image::ImageError) -> Error {
    Error::Damaged(error.to_string())
}

/// Converts to RGB, blended over white.
fn over_white(decoded: DynamicImage) -> Vec<u8> {
    if !decoded.color().has_alpha() {
        return decoded.into_rgb8().into_raw();
    }
    let blend = |channel: u8, alpha: u8| {
        let (channel, alpha) = (u32::from(channel), u32::from(alpha));
        ((channel * alpha + 255 * (255 - alpha) + 127) / 255) as u8
    };
    let pixels = decoded.into_rgba8();
    let mut bytes = Vec::with_capacity(3 * pixels.as_raw().len() / 4);
    for pixel in pixels.pixels() {
        let [red, green, blue, alpha] = pixel.0;
        bytes.extend([blend(red, alpha), blend(green, alpha), blend(blue, alpha)]);
    }
    bytes
}
