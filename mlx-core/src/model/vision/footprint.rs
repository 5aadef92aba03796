//! Bytes that pictures take on the device, from the shape of the tower alone.

use chat_format::Pixels;

use super::attention::queries_at_once;

/// The sizes of a tower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Pixels of a side.
    pub(super) patch_size: usize,
    /// Patches of a side that become one row.
    pub(super) spatial_merge_size: usize,
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    /// 0 where patches do not attend to each other.
    pub(super) num_heads: usize,
    /// Numbers of a row of features.
    pub(super) row_width: usize,
}

/// What a tower takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VisionFootprint {
    /// Bytes of its weights and of the projector's.
    pub weight_bytes: u64,
    /// Pixels of a patch.
    patch: u64,
    /// Patches of a row.
    merged: u64,
    /// Bytes of a patch on its way through the tower.
    bytes_per_patch: u64,
    /// Bytes of the scores of a patch for each patch that attends to it at once.
    bytes_per_score: u64,
    /// Bytes of a row of features.
    bytes_per_row: u64,
    row_width: usize,
    heads: usize,
}

impl VisionFootprint {
    /// Numbers of a row of features: the width of the text's hidden states, once and for each layer that more is added behind.
    pub(crate) fn row_width(&self) -> usize {
        self.row_width
    }

    /// For activations of `size` bytes.
    pub(super) fn new(config: &Shape, weight_bytes: u64, size: u64) -> Self {
        let patch = (config.patch_size * config.patch_size) as u64;
        let merged = (config.spatial_merge_size * config.spatial_merge_size) as u64;
        let (hidden, inner) = (config.hidden_size as u64, config.intermediate_size as u64);
        // Pixels as f32, in the type of the weights and once more; the stream and its norms, queries, keys and values as they are
        // computed and turned, the answers; the gate, what it multiplies and both together; turns as f32 and in the type of the weights.
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

    /// Bytes of the features of a picture.
    pub fn features(&self, image: &Pixels) -> u64 {
        self.patches(image) / self.merged * self.bytes_per_row
    }

    /// Bytes that the tower takes beside its weights while it sees a picture, with the features.
    pub fn pass(&self, image: &Pixels) -> u64 {
        let patches = self.patches(image);
        let at_once = queries_at_once(patches as usize, self.heads).min(patches as usize);
        patches * (self.bytes_per_patch + self.bytes_per_score * at_once as u64)
    }

    /// Bytes of the pictures of a request: their features, and the tower's work on the largest. It sees one at a time.
    pub fn request(&self, images: &[Pixels]) -> u64 {
        let features: u64 = images.iter().map(|image| self.features(image)).sum();
        features + images.iter().map(|image| self.pass(image)).max().unwrap_or(0)
    }

    fn patches(&self, image: &Pixels) -> u64 {
        u64::from(image.width()) * u64::from(image.height()) / self.patch
    }
}
