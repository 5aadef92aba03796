//! Pictures in messages, as files or as pixels.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{DecodeError, Engine as _, alphabet};
use mlx_image::{Limits, Picture};
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};

/// A picture in a message. Clones share its data.
#[derive(Clone, Serialize, Deserialize)]
#[serde(into = "Wire", try_from = "Wire")]
pub struct Image(Kind);

#[derive(Clone)]
enum Kind {
    File { bytes: Arc<[u8]>, hash: [u8; 32] },
    Pixels(Pixels),
}

impl Image {
    /// Returns a picture in a file: png, jpeg, webp or the first frame of a gif. It is decoded only when a model needs
    /// it.
    pub fn file(bytes: Vec<u8>) -> Self {
        let hash = mlx_image::sha256(&bytes);
        Self(Kind::File { bytes: bytes.into(), hash })
    }

    /// Decodes an image file from base64, for [`Self::file`]. Line breaks and missing padding are accepted, since many
    /// tools write them.
    ///
    /// # Errors
    /// Returns the reason if the text is empty or not base64.
    pub fn from_base64(text: &str) -> Result<Self, String> {
        match decoded(text) {
            Ok(bytes) if bytes.is_empty() => Err("is empty; give the bytes of an image".to_owned()),
            Ok(bytes) => Ok(Self::file(bytes)),
            Err(error) => Err(format!("is not base64: {error}")),
        }
    }

    /// Returns true if bytes begin like a file of a supported format.
    pub fn is_file(bytes: &[u8]) -> bool {
        Self::media_type(bytes).is_some()
    }

    /// Returns the media type of a supported file, such as `image/png`.
    pub fn media_type(bytes: &[u8]) -> Option<&'static str> {
        mlx_image::media_type(bytes)
    }

    /// Returns the maximum size of a file in bytes.
    pub fn largest_file() -> usize {
        Limits::default().bytes
    }

    /// Returns a picture of `width` times `height` pixels, row by row from the top, three bytes each.
    pub fn new(width: u32, height: u32, rgb: Vec<u8>) -> Result<Self> {
        Pixels::new(width, height, rgb).map(|pixels| Self(Kind::Pixels(pixels)))
    }

    /// Returns its pixels. A file is decoded.
    ///
    /// # Errors
    /// Returns an error if the file is damaged, too large, or in another format.
    pub fn pixels(&self) -> Result<Pixels, mlx_image::Error> {
        match &self.0 {
            Kind::File { bytes, .. } => mlx_image::decode(bytes, &Limits::default()).map(Pixels::from),
            Kind::Pixels(pixels) => Ok(pixels.clone()),
        }
    }

    /// Returns its pixels as a preview of at most `width` times `height`.
    ///
    /// # Errors
    /// As for [`Self::pixels`].
    pub fn thumbnail(&self, width: u32, height: u32) -> Result<Pixels, mlx_image::Error> {
        Ok(mlx_image::within(&*self.picture()?, width, height).into())
    }

    /// Returns its decoded pixels. A file's pixels have no hash yet, since they are resized before they are hashed.
    pub fn picture(&self) -> Result<Cow<'_, Picture>, mlx_image::Error> {
        match &self.0 {
            Kind::File { bytes, .. } => mlx_image::decode(bytes, &Limits::default()).map(Cow::Owned),
            Kind::Pixels(pixels) => Ok(Cow::Borrowed(&pixels.0.picture)),
        }
    }

    /// Returns the bytes of the file; `None` for pixels.
    pub fn file_bytes(&self) -> Option<&[u8]> {
        match &self.0 {
            Kind::File { bytes, .. } => Some(bytes),
            Kind::Pixels(_) => None,
        }
    }

    /// Returns the SHA-256 of the file, or of the size and the pixels.
    pub fn hash(&self) -> &[u8; 32] {
        match &self.0 {
            Kind::File { hash, .. } => hash,
            Kind::Pixels(pixels) => pixels.hash(),
        }
    }
}

impl PartialEq for Image {
    fn eq(&self, other: &Self) -> bool {
        self.hash() == other.hash()
    }
}

impl Eq for Image {}

impl fmt::Debug for Image {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match &self.0 {
            Kind::File { bytes, .. } => write!(out, "Image({} bytes)", bytes.len()),
            Kind::Pixels(pixels) => write!(out, "Image({pixels:?})"),
        }
    }
}

/// The pixels of a picture. Clones share them.
#[derive(Clone)]
pub struct Pixels(Arc<Hashed>);

struct Hashed {
    picture: Picture,
    hash: [u8; 32],
}

impl Pixels {
    /// Returns `width` times `height` pixels, row by row from the top, three bytes each.
    pub fn new(width: u32, height: u32, rgb: Vec<u8>) -> Result<Self> {
        let bytes = rgb.len();
        let picture = Picture::new(width, height, rgb).ok_or_else(|| {
            let message = format!("has {bytes} bytes; {width} x {height} RGB pixels need 3 bytes each");
            Error::request("image", message)
        })?;
        Ok(picture.into())
    }

    /// The width in pixels.
    pub fn width(&self) -> u32 {
        self.0.picture.width()
    }

    /// The height in pixels.
    pub fn height(&self) -> u32 {
        self.0.picture.height()
    }

    /// Returns the pixels, row by row from the top, three bytes each.
    pub fn rgb(&self) -> &[u8] {
        self.0.picture.pixels()
    }

    /// Encodes them as a png file.
    pub fn to_png(&self) -> Vec<u8> {
        self.0.picture.to_png()
    }

    /// Returns the SHA-256 of the size and the pixels.
    pub fn hash(&self) -> &[u8; 32] {
        &self.0.hash
    }
}

impl Serialize for Pixels {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        (self.width(), self.height(), Bytes(self.rgb())).serialize(serializer)
    }
}

/// Bytes that are serialized as such, not as a list of numbers.
struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// Deserialized bytes.
struct OwnedBytes(Vec<u8>);

impl<'de> Deserialize<'de> for OwnedBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct BytesVisitor;

        impl Visitor<'_> for BytesVisitor {
            type Value = OwnedBytes;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> std::result::Result<OwnedBytes, E> {
                Ok(OwnedBytes(bytes.to_vec()))
            }

            fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> std::result::Result<OwnedBytes, E> {
                Ok(OwnedBytes(bytes))
            }
        }

        deserializer.deserialize_byte_buf(BytesVisitor)
    }
}

impl<'de> Deserialize<'de> for Pixels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let (width, height, rgb): (u32, u32, OwnedBytes) = Deserialize::deserialize(deserializer)?;
        Self::new(width, height, rgb.0).map_err(D::Error::custom)
    }
}

impl From<Picture> for Pixels {
    fn from(picture: Picture) -> Self {
        let hash = picture.digest();
        Self(Arc::new(Hashed { picture, hash }))
    }
}

impl From<Pixels> for Image {
    fn from(pixels: Pixels) -> Self {
        Self(Kind::Pixels(pixels))
    }
}

impl PartialEq for Pixels {
    fn eq(&self, other: &Self) -> bool {
        self.hash() == other.hash()
    }
}

impl Eq for Pixels {}

impl fmt::Debug for Pixels {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "{} x {}", self.width(), self.height())
    }
}

/// Decodes base64 with or without padding. Whitespace is skipped.
pub(crate) fn decoded(text: &str) -> Result<Vec<u8>, DecodeError> {
    const ENGINE: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    if !text.bytes().any(|byte| byte.is_ascii_whitespace()) {
        return ENGINE.decode(text);
    }
    let bytes: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    ENGINE.decode(bytes)
}

/// A picture in a saved conversation.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "an image is a file, or width, height and rgb")]
enum Wire {
    File(WireFile),
    Pixels(WirePixels),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireFile {
    /// The file in base64.
    file: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WirePixels {
    width: u32,
    height: u32,
    /// The pixels in base64.
    rgb: String,
}

impl From<Image> for Wire {
    fn from(image: Image) -> Self {
        match image.0 {
            Kind::File { bytes, .. } => Self::File(WireFile { file: STANDARD.encode(bytes) }),
            Kind::Pixels(pixels) => Self::Pixels(WirePixels {
                width: pixels.width(),
                height: pixels.height(),
                rgb: STANDARD.encode(pixels.rgb()),
            }),
        }
    }
}

impl TryFrom<Wire> for Image {
    type Error = Error;

    fn try_from(wire: Wire) -> Result<Self> {
        match wire {
            Wire::File(WireFile { file }) => {
                Self::from_base64(&file).map_err(|why| Error::request("file", why))
            }
            Wire::Pixels(WirePixels { width, height, rgb }) => {
                let rgb = decoded(&rgb);
                let rgb = rgb.map_err(|error| Error::request("rgb", format!("is not base64: {error}")))?;
                Self::new(width, height, rgb)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_its_size_and_its_pixels() {
        let image = |width, height, rgb: &[u8]| Image::new(width, height, rgb.to_vec()).expect("a picture");
        let wide = image(2, 1, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(wide, image(2, 1, &[1, 2, 3, 4, 5, 6]));
        assert_ne!(wide, image(1, 2, &[1, 2, 3, 4, 5, 6]));
        assert_ne!(wide, image(2, 1, &[1, 2, 3, 4, 5, 7]));
        for (width, height) in [(0, 0), (1, 1), (2, 2), (u32::MAX, u32::MAX)] {
            let error = Image::new(width, height, vec![0; 6]).expect_err("another size").to_string();
            assert!(error.contains("6 bytes"), "{error}");
        }
    }

    #[test]
    fn a_file_is_saved_as_it_is_and_decoded_when_it_is_looked_at() {
        let damaged = Image::file(b"GIF89a and no more".to_vec());
        let saved = serde_json::to_value(&damaged).expect("it has a form");
        assert_eq!(serde_json::from_value::<Image>(saved).expect("it was written"), damaged);
        assert!(damaged.pixels().is_err());
        assert!(serde_json::from_str::<Image>("{\"file\": \"?\"}").is_err());
    }

    #[test]
    fn base64_may_have_white_space_and_no_padding() {
        let expected = Image::file(vec![1, 2, 3, 4]);
        for text in ["AQIDBA==", "AQIDBA", "AQID\r\nBA==\r\n", " AQ\tID\nBA =\n= \x0c"] {
            assert_eq!(Image::from_base64(text), Ok(expected.clone()), "{text:?}");
        }
        for (text, why) in
            [("", "is empty"), (" \n", "is empty"), ("A?", "is not base64"), ("AQ\u{a0}ID", "is not base64")]
        {
            assert!(Image::from_base64(text).expect_err(text).contains(why), "{text:?}");
        }
    }
}
