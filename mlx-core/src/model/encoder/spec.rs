//! The properties of an encoder: its head, and the bytes that its passes take, computed only from the shape of the model.

use serde::{Deserialize, Serialize};

use super::config::EncoderConfig;
use super::text_encoder::queries_at_once;
use crate::backend::AttentionKernels;
use crate::model::footprint::Footprint;

/// The properties of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncoderSpec {
    /// The number of logits of a cross-encoder's head; `None` without a head.
    pub labels: Option<usize>,
    /// Bytes of one token of a pass: the widest activations that exist at the same time.
    bytes_per_row: u64,
    /// The bytes of a token's scores for each key; 0 if the device writes none.
    pub(super) row_scores: u64,
    /// The bytes of masks for each pair of tokens of a text.
    mask_bytes: u64,
}

impl EncoderSpec {
    /// Computes the memory for activations of `size` bytes and for the attention kernels of a device.
    pub(super) fn new(config: &EncoderConfig, size: u64, kernels: AttentionKernels) -> Self {
        let (stack, footprint) = (&config.stack, Footprint::new(&config.stack, size, kernels));
        let has_windows = stack.layers.iter().any(|layer| layer.sliding_window.is_some());
        // Masks are numbers. Kernels read those of one head with strides. MLX makes a mask of each head only from booleans.
        // A mask, its sum with the mask of padding, and the booleans that it is made of.
        let window = if has_windows { 2 * size + 5 } else { 0 };
        // Buckets, biases, and their sum with the mask of padding.
        let heads = stack.attention.num_heads as u64;
        let bias = if config.relative_bias.is_some() { 4 + 3 * heads * size } else { 0 };
        // Pooling reads the hidden states in f32.
        let bytes_per_row = footprint.bytes_per_row + 8 * stack.hidden_size as u64;
        Self {
            labels: config.head.as_ref().map(|head| head.labels),
            bytes_per_row,
            row_scores: footprint.attention.row_scores(),
            mask_bytes: window + bias,
        }
    }

    /// Returns the bytes of a pass of this many texts, padded to `length` tokens.
    pub(crate) fn pass(self, texts: usize, length: usize) -> u64 {
        let queries = queries_at_once(self.row_scores, texts, length);
        let rows = (texts * length) as u64;
        let scores = queries as u64 * self.row_scores + length as u64 * self.mask_bytes;
        rows * (self.bytes_per_row + scores)
    }
}
