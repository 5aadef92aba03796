//! The properties of a Whisper model, and the bytes that a window takes, computed only from the shape of the model.

use serde::{Deserialize, Serialize};

use super::config::{SOURCE_POSITIONS, WhisperConfig};
use crate::backend::AttentionKernels;

/// The properties of a Whisper model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhisperSpec {
    /// The mel bins of a frame of features.
    pub mel_bins: usize,
    /// The maximum number of tokens of a window, with its prompt.
    pub target_positions: usize,
    /// Bytes of a window while it runs: its features, the encoded audio and the states of its tokens.
    pub window_bytes: u64,
    /// Bytes of the largest pass.
    pub pass_bytes: u64,
}

impl WhisperSpec {
    /// Computes the memory for numbers of `size` bytes and for the attention kernels of a device.
    pub(super) fn new(config: &WhisperConfig, size: u64, kernels: AttentionKernels) -> Self {
        let (hidden, positions) = (config.hidden_size as u64, SOURCE_POSITIONS as u64);
        let (bins, tokens) = (config.mel_bins as u64, config.target_positions as u64);
        let features = 2 * positions * bins * (4 + size);
        let layers = config.decoder.layers as u64;
        let encoded = 2 * layers * positions * hidden * size;
        // A state is copied when it grows. The state after the prompt remains for further attempts.
        let states = 3 * 2 * layers * tokens * hidden * size;
        let scores = match kernels {
            AttentionKernels::None => 2 * config.encoder.heads as u64 * positions * positions * size.max(4),
            AttentionKernels::Metal | AttentionKernels::Cuda => 0,
        };
        // Queries, keys, values, their transposed copies, sums and norms; and the block's activation with its parts.
        let wide = config.encoder.intermediate_size as u64;
        let layer = positions * size * (12 * hidden + 4 * wide) + scores;
        let convolutions = 2 * positions * size * (4 * 3 * hidden.max(bins) + 6 * hidden);
        // Scores, weights, their norms and a copy of the heads of a layer.
        let alignment = 6 * config.decoder.heads as u64 * tokens * positions * 4 / 2;
        let logits = 3 * config.vocab_size as u64 * (size + 4);
        Self {
            mel_bins: config.mel_bins,
            target_positions: config.target_positions,
            window_bytes: features + encoded + states,
            pass_bytes: layer.max(convolutions).max(alignment) + logits,
        }
    }
}
