//! Bytes that sequences and passes take on the device, from the shape of the model alone.

use super::decoder::DecoderConfig;
use crate::cache;

/// How memory grows with tokens, rows and positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes that one token takes in the cache of all layers.
    pub cache_per_token: u64,
    /// Bytes of one row of a pass: the widest activations that are alive at once.
    pub per_row: u64,
    /// Bytes of one row of logits, on the device and as f32.
    pub logits_per_row: u64,
    /// Bytes of one row's attention scores for every position it looks at.
    pub scores_per_position: u64,
    layers: u64,
}

impl Footprint {
    /// For activations of `size` bytes.
    pub(super) fn new(config: &DecoderConfig, size: u64) -> Self {
        let attention = &config.attention;
        let key_width = 2 * attention.key_heads * attention.head_size;
        let query_width = attention.query_heads * attention.head_size;
        let width = 4 * config.hidden + 3 * (query_width + key_width) + 5 * config.feed_forward.inner;
        Self {
            cache_per_token: (config.layers * key_width) as u64 * size,
            per_row: width as u64 * size,
            logits_per_row: config.vocabulary as u64 * (size + 4),
            // The scores, their mask, the softmax and one copy.
            scores_per_position: attention.query_heads as u64 * 4 * 4,
            layers: config.layers as u64,
        }
    }

    /// Bytes of the cache of a sequence of `tokens` tokens, with the two layers that are being copied when it grows.
    pub fn cache(&self, tokens: usize) -> u64 {
        let held = self.cache_per_token * cache::capacity(tokens) as u64;
        held + 2 * held / self.layers
    }

    /// Bytes that one pass over `rows` rows takes beside the caches, each row looking at up to `depth` positions.
    pub fn pass(&self, rows: usize, depth: usize) -> u64 {
        rows as u64 * (self.per_row + self.scores_per_position * depth as u64)
    }
}
