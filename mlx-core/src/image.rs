//! A picture: pixels that front ends decode, messages carry and vision towers see.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mlx_image::Picture;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// An RGB picture. Clones share its pixels.
#[derive(Clone, Serialize, Deserialize)]
#[serde(into = "Wire", try_from = "Wire")]
pub struct Image(Arc<Hashed>);

struct Hashed {
    picture: Picture,
    hash: [u8; 32],
}

impl Image {
    /// A picture of `width` times `height` pixels, row by row from the top, three bytes each.
    pub fn new(width: u32, height: u32, rgb: Vec<u8>) -> Result<Self> {
        let bytes = rgb.len();
        let picture = Picture::new(width, height, rgb).ok_or_else(|| {
            let message =
                format!("has {bytes} bytes; {width} x {height} pixels of red, green and blue are needed");
            Error::request("image", message)
        })?;
        Ok(picture.into())
    }

    /// Pixels of a row.
    pub fn width(&self) -> u32 {
        self.0.picture.width()
    }

    /// The number of rows.
    pub fn height(&self) -> u32 {
        self.0.picture.height()
    }

    /// The pixels, row by row from the top, three bytes each.
    pub fn rgb(&self) -> &[u8] {
        self.0.picture.pixels()
    }

    /// SHA-256 of the size and the pixels.
    pub fn hash(&self) -> &[u8; 32] {
        &self.0.hash
    }
}

impl From<Picture> for Image {
    fn from(picture: Picture) -> Self {
        let hash = picture.digest();
        Self(Arc::new(Hashed { picture, hash }))
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
        write!(out, "Image({} x {})", self.width(), self.height())
    }
}

/// A picture in a saved conversation.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    width: u32,
    height: u32,
    /// Its pixels in base64.
    rgb: String,
}

impl From<Image> for Wire {
    fn from(image: Image) -> Self {
        Self { width: image.width(), height: image.height(), rgb: STANDARD.encode(image.rgb()) }
    }
}

impl TryFrom<Wire> for Image {
    type Error = Error;

    fn try_from(Wire { width, height, rgb }: Wire) -> Result<Self> {
        let rgb =
            STANDARD.decode(rgb).map_err(|error| Error::request("rgb", format!("is not base64: {error}")))?;
        Self::new(width, height, rgb)
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
}
