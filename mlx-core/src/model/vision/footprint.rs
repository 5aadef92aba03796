//! The bytes that pictures take on the device, computed only from the shape of the tower.

use chat_format::Pixels;

use super::attention::queries_at_once;

/// The sizes of a tower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// The side of a patch, in pixels.
    pub(super) patch_size: usize,
    /// The side of a merged patch, which becomes one row, in patches.
    pub(super) spatial_merge_size: usize,
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    /// The number of heads; 0 if patches do not attend to each other.
    pub(super) num_heads: usize,
    /// The numbers in a row of features.
    pub(super) row_width: usize,
}

/// The memory of a tower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VisionFootprint {
    /// Bytes of the weights of the tower and the projector.
    pub weight_bytes: u64,
    /// Pixels per patch.
    patch: u64,
    /// Patches per row.
    merged: u64,
    /// Temporary bytes per patch in the tower.
    bytes_per_patch: u64,
    /// Bytes of scores per pair of patches that attend at the same time.
    bytes_per_score: u64,
    /// Bytes per row of features.
    bytes_per_row: u64,
    row_width: usize,
    heads: usize,
}

impl VisionFootprint {
    /// Returns the numbers in a row of features: the width of the text's hidden states, once and for each layer that gets more features.
    pub(crate) fn row_width(&self) -> usize {
        self.row_width
    }

    /// Computes the footprint for activations of `size` bytes.
    pub(super) fn new(config: &Shape, weight_bytes: u64, size: u64) -> Self {
        let patch = (config.patch_size * config.patch_size) as u64;
        let merged = (config.spatial_merge_size * config.spatial_merge_size) as u64;
        let (hidden, inner) = (config.hidden_size as u64, config.intermediate_size as u64);
        // Pixels as f32, in the type of the weights, and one more copy; the stream and its norms; projected and rotated queries, keys and
        // values; the output of attention; the gate, its factor and their product; rotations as f32 and in the type of the weights.
        let pixels = 3 * patch * (8 + size);
        let layer = (18 * hidden + 5 * inner) * size;
        let turns = 6 * config.hidden_size.checked_div(config.num_heads).unwrap_or(0) as u64 * size.max(4);
        // The scores, their softmax and a copy.
        let bytes_per_score = 4 * config.num_heads as u64 * 4;
        let bytes_per_row = config.row_width as u64 * size;
        let bytes_per_patch = pixels + layer + turns + 4 * bytes_per_row;
        Self {
            weight_bytes,
            patch,
            merged,
            bytes_per_patch,
            bytes_per_score,
            bytes_per_row,
            row_width: config.row_width,
            heads: config.num_heads,
        }
    }

    /// Returns the bytes of the features of a picture.
    pub fn features(&self, image: &Pixels) -> u64 {
        self.patches(image) / self.merged * self.bytes_per_row
    }

    /// Returns the bytes that the tower takes for a picture in addition to its weights, including the features.
    pub fn pass(&self, image: &Pixels) -> u64 {
        let patches = self.patches(image);
        let at_once = queries_at_once(patches as usize, self.heads).min(patches as usize);
        patches * (self.bytes_per_patch + self.bytes_per_score * at_once as u64)
    }

    /// Returns the bytes of the pictures of a request: all features, and the tower's memory for the largest picture. The tower computes one
    /// picture at a time.
    pub fn request<'a>(&self, images: impl Iterator<Item = &'a Pixels> + Clone) -> u64 {
        let features: u64 = images.clone().map(|image| self.features(image)).sum();
        features + images.map(|image| self.pass(image)).max().unwrap_or(0)
    }

    fn patches(&self, image: &Pixels) -> u64 {
        u64::from(image.width()) * u64::from(image.height()) / self.patch
    }
}
