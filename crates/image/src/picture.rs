//! A decoded picture: rows of red, green and blue bytes.

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};
use sha2::{Digest, Sha256};

/// SHA-256 of the bytes of a file.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// A decoded picture of at least one pixel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Picture {
    width: u32,
    height: u32,
    /// Rows from the top, pixels from the left, three bytes each: red, green, blue.
    pixels: Vec<u8>,
}

impl Picture {
    /// Returns a picture of these bytes; `None` unless there are `3 · width · height` of them, and at least one pixel.
    pub fn new(width: u32, height: u32, pixels: Vec<u8>) -> Option<Self> {
        let bytes = u64::from(width).checked_mul(u64::from(height))?.checked_mul(3)?;
        (bytes > 0 && bytes == pixels.len() as u64).then_some(Self { width, height, pixels })
    }

    /// The width in pixels.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// The height in pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Returns all bytes: rows from the top, pixels from the left, three bytes each: red, green, blue.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Returns the bytes of each row, from the top.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator {
        self.pixels.chunks_exact(3 * self.width as usize)
    }

    /// Returns red, green and blue of a pixel; `None` outside the picture.
    pub fn pixel(&self, x: u32, y: u32) -> Option<[u8; 3]> {
        let inside = x < self.width && y < self.height;
        let at = 3 * (y as usize * self.width as usize + x as usize);
        inside.then(|| [self.pixels[at], self.pixels[at + 1], self.pixels[at + 2]])
    }

    /// Divides it into a grid of equal tiles, row by row. Its sides must be multiples of the numbers of rows and columns.
    pub fn tiles(&self, rows: u32, columns: u32) -> Vec<Self> {
        let (width, height) = (self.width / columns.max(1), self.height / rows.max(1));
        let lines: Vec<&[u8]> = self.rows().collect();
        let bytes = 3 * width as usize;
        let tile = |row: usize, column: usize| {
            let of_tile = lines.iter().skip(row * height as usize).take(height as usize);
            let pixels =
                of_tile.flat_map(|line| &line[column * bytes..(column + 1) * bytes]).copied().collect();
            Self { width, height, pixels }
        };
        (0..rows as usize)
            .flat_map(|row| (0..columns as usize).map(move |column| (row, column)))
            .map(|(row, column)| tile(row, column))
            .collect()
    }

    /// The picture as a png file.
    #[expect(clippy::missing_panics_doc, reason = "a picture has the bytes of its size")]
    pub fn to_png(&self) -> Vec<u8> {
        let mut file = Vec::new();
        PngEncoder::new(&mut file)
            .write_image(&self.pixels, self.width, self.height, ExtendedColorType::Rgb8)
            .expect("the bytes are those of its size, and memory takes them");
        file
    }

    /// Returns the SHA-256 of width, height (both as eight little-endian bytes) and pixels. It is stable across
    /// processes and machines.
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(u64::from(self.width).to_le_bytes());
        hash.update(u64::from(self.height).to_le_bytes());
        hash.update(&self.pixels);
        hash.finalize().into()
    }
}
