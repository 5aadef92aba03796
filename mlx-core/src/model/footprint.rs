//! Bytes that sequences and passes take on the device, from the shape of the model alone.

use super::config::DecoderConfig;
use super::moe::MoeConfig;
use crate::cache;

/// How memory grows with tokens, rows and positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of a sequence's state at any length, as recurrent layers take.
    pub fixed: u64,
    /// Bytes that one more token takes in the state of a sequence, in a buffer of its own or in a slot of a pool.
    pub per_token: u64,
    /// Bytes of one row of a pass: the widest activations that are alive at once.
    pub bytes_per_row: u64,
    /// Bytes of one row of logits, on the device and as f32.
    pub logits_per_row: u64,
    /// Bytes of one row's attention scores for every position that it attends to.
    pub scores_per_position: u64,
    /// Of `per_token`, what layers with a sliding window take.
    sliding_per_token: u64,
    /// What one layer takes of it.
    layer_per_token: u64,
    window: Option<usize>,
    /// Bytes of a number in the model's type.
    size: u64,
    /// Bytes that one token of one layer takes while quantized keys and values are read.
    unpacked_per_token: u64,
}

impl Footprint {
    /// For activations of `size` bytes.
    pub(super) fn new(config: &DecoderConfig, size: u64) -> Self {
        let attention = &config.attention;
        let key_width = 2 * attention.num_kv_heads * attention.head_dim;
        let query_width = attention.num_heads * attention.head_dim;
        let copies = if attention.norm.is_some() { 5 } else { 3 };
        let sparse = |experts: &MoeConfig| {
            let shared = experts.shared.map_or(0, |shared| 5 * shared.intermediate_size + config.hidden_size);
            experts.num_experts_per_tok * (5 * experts.intermediate_size + 2 * config.hidden_size)
                + 4 * experts.num_experts
                + shared
        };
        let inner =
            (5 * config.feed_forward.intermediate_size).max(config.experts.as_ref().map_or(0, sparse));
        let width = 4 * config.hidden_size + copies * (query_width + key_width) + inner;
        let layer_per_token = key_width as u64 * size;
        let windows = || config.layers.iter().filter_map(|layer| layer.sliding_window);
        Self {
            // All layers have attention.
            fixed: 0,
            per_token: config.layers.len() as u64 * layer_per_token,
            bytes_per_row: width as u64 * size,
            logits_per_row: config.vocab_size as u64 * (size + 4),
            // The scores, their mask, the softmax and one copy; capped ones some more.
            scores_per_position: attention.num_heads as u64
                * 4
                * if attention.softcap.is_some() { 7 } else { 4 },
            sliding_per_token: windows().count() as u64 * layer_per_token,
            layer_per_token,
            window: windows().max(),
            size,
            unpacked_per_token: 0,
        }
    }

    /// Bytes of the state of a sequence of `tokens` tokens that come in passes of up to `run`, with the two layers that are being
    /// copied when it grows.
    pub fn state(&self, tokens: usize, run: usize) -> u64 {
        let full_per_token = self.per_token - self.sliding_per_token;
        let all = cache::layer_capacity(None, tokens, run) as u64;
        let recent = cache::layer_capacity(self.window, tokens, run) as u64;
        let longest = if full_per_token > 0 { all } else { recent };
        let read = (2 * self.layer_per_token + self.unpacked_per_token) * longest;
        self.fixed + full_per_token * all + self.sliding_per_token * recent + read
    }

    /// The same for caches that keep every position in so many bits; those of layers with a window stay as they are. None if there
    /// are only such, or groups of numbers do not come out even.
    pub fn in_bits(self, bits: u8) -> Option<Self> {
        let full_per_token = self.per_token - self.sliding_per_token;
        let (numbers, group) = (full_per_token / self.size, cache::GROUP as u64);
        let even = numbers > 0 && (self.layer_per_token / self.size).is_multiple_of(group);
        let packed = numbers * u64::from(bits) / 8 + numbers / group * 2 * self.size;
        // As they come out of their packing, which MLX's CPU does in words of 32 bits whatever the type, and in the order that
        // attention reads them.
        let unpacked_per_token = 8 * self.layer_per_token / self.size;
        even.then_some(Self { per_token: packed + self.sliding_per_token, unpacked_per_token, ..self })
    }

    /// Bytes that one pass over `rows` rows takes beside the caches, each row looking at up to `depth` positions.
    pub fn pass(&self, rows: usize, depth: usize) -> u64 {
        rows as u64 * (self.bytes_per_row + self.scores_per_position * depth as u64)
    }
}
