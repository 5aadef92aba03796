//! A picture in the sizes that a model needs.

use chat_format::Pixels;

/// A picture in the sizes that a model needs. The tower computes each part separately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizedPicture {
    /// The picture itself; or its tiles, row by row, and then the whole picture if the model reads it too.
    pub parts: Vec<Pixels>,
    /// The rows and columns of tiles, if the picture is divided.
    pub(super) tiles: Option<(usize, usize)>,
}

impl ResizedPicture {
    /// Creates a picture that is not divided.
    pub(super) fn whole(pixels: Pixels) -> Self {
        Self { parts: vec![pixels], tiles: None }
    }
}
