//! A picture: pixels that front ends decode, messages carry and vision towers see.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// The bytes of a pixel: red, green, blue.
const CHANNELS: usize = 3;

/// An RGB picture. Clones share its pixels.
#[derive(Clone, Serialize, Deserialize)]
#[serde(into = "Wire", try_from = "Wire")]
pub struct Image(Arc<Pixels>);

struct Pixels {
    width: u32,
    height: u32,
    rgb: Vec<u8>,
    hash: [u8; 32],
}

impl Image {
    /// A picture of `width` times `height` pixels, row by row from the top, three bytes each.
    pub fn new(width: u32, height: u32, rgb: Vec<u8>) -> Result<Self> {
        let bytes = (width as usize).checked_mul(height as usize).and_then(|it| it.checked_mul(CHANNELS));
        if bytes != Some(rgb.len()) || rgb.is_empty() {
            let message = format!(
                "has {} bytes; {width} x {height} pixels of red, green and blue are needed",
                rgb.len()
            );
            return Err(Error::request("image", message));
        }
        let mut hash = Sha256::new();
        hash.update(width.to_le_bytes());
        hash.update(height.to_le_bytes());
        hash.update(&rgb);
        let hash = hash.finalize().into();
        Ok(Self(Arc::new(Pixels { width, height, rgb, hash })))
    }

    /// Pixels of a row.
    pub fn width(&self) -> u32 {
        self.0.width
    }

    /// The number of rows.
    pub fn height(&self) -> u32 {
        self.0.height
    }

    /// The pixels, row by row from the top, three bytes each.
    pub fn rgb(&self) -> &[u8] {
        &self.0.rgb
    }

    /// SHA-256 of the size and the pixels.
    pub fn hash(&self) -> &[u8; 32] {
        &self.0.hash
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
