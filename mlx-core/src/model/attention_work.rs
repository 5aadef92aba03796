//! The memory of attention in a pass, without keys and values. Invariant: pure; it depends on the model's shape and the device's kernels.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::attention::AttentionConfig;
use super::attention::body::{Body, Mask, Shape};
use super::config::DecoderConfig;
use super::mixer::MixerKind;
use crate::backend::AttentionKernels;

/// Spans of up to this many rows use other kernels than longer spans.
const FEW: usize = 8;

/// The number of layers with scores in memory at the same time on a GPU. MLX issues up to ten command buffers ahead (`MAX_ACTIVE_TASKS` in
/// mlx/transforms.cpp, 0.32.2) and frees their inputs when they end. An array as large as scores fills a command buffer.
const LAYERS_OF_SCORES: u64 = 2;

/// The number of layers with partial sums in memory at the same time on a GPU. They are smaller than scores.
const LAYERS_OF_SUMS: u64 = 4;

/// Returns the maximum number of blocks of positions for which a vector kernel writes partial sums (`sdpa_vector_2pass` in
/// mlx/backend/metal/scaled_dot_product_attention.cpp, 0.32.2; CUDA has fewer).
fn blocks(depth: usize) -> u64 {
    match depth {
        0..=8192 => 128,
        8193..=16_383 => 256,
        16_384..=65_535 => 512,
        _ => 1024,
    }
}

/// The bytes of attention in a pass, without keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionWork {
    /// In layers without a window.
    all: Scores,
    /// In layers with a window.
    windowed: Scores,
    /// The widest window.
    window: usize,
    /// The number of window masks, with a byte per row and position: one per width, and one for intermediate results.
    masks: u64,
    /// The heads of step masks, which have a byte per head, row and position.
    heads: u64,
    /// True if a layer has no window.
    sees_all: bool,
    /// The bytes of a row's partial sums per block of positions.
    sums: u64,
}

/// The bytes of scores per row and position of a span; 0 if the kernel writes none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Scores {
    one_row: u64,
    few_rows: u64,
    many_rows: u64,
}

impl AttentionWork {
    /// Computes the memory for numbers of `size` bytes.
    pub(super) fn new(config: &DecoderConfig, size: u64, kernels: AttentionKernels) -> Self {
        let (mut work, mut windows) = (Self::default(), BTreeSet::new());
        for layer in &config.layers {
            let (attention, value_width) = match layer.mixer {
                MixerKind::Latent(latent) => (latent.attention(), latent.kv_lora_rank),
                _ => match config.attention_of(layer) {
                    Some(attention) => (attention.clone(), attention.head_dim),
                    None => continue,
                },
            };
            let window = layer.sliding_window.filter(|_| kernels != AttentionKernels::None);
            let layer = Layer::new(&attention, value_width, size, window.is_some(), kernels);
            work.sums = work.sums.max(layer.sums());
            if kernels != AttentionKernels::None {
                work.heads = work.heads.max(attention.num_heads as u64);
            }
            match window {
                None => {
                    work.all = work.all.or(layer.scores());
                    work.sees_all = true;
                }
                Some(window) => {
                    work.windowed = work.windowed.or(layer.scores());
                    windows.insert(window);
                }
            }
        }
        work.window = windows.last().copied().unwrap_or(0);
        work.masks = if windows.is_empty() { 0 } else { windows.len() as u64 + 1 };
        work
    }

    /// Returns the larger of each figure.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            all: self.all.or(other.all),
            windowed: self.windowed.or(other.windowed),
            window: self.window.max(other.window),
            masks: self.masks.max(other.masks),
            heads: self.heads.max(other.heads),
            sees_all: self.sees_all || other.sees_all,
            sums: self.sums.max(other.sums),
        }
    }

    /// Returns the bytes for a span of up to `rows` rows that attend to up to `depth` positions.
    pub fn span(self, rows: usize, depth: usize) -> u64 {
        // The span may be shorter than `rows`.
        let one = self.row(1, depth, |it| it.one_row) + self.step_mask(1, depth) + self.sums_at(depth);
        let few = if rows > 1 { self.verification(rows.min(FEW), depth) } else { 0 };
        let many = rows as u64 * (self.row(rows, depth, |it| it.many_rows) + self.mask(rows, depth));
        one.max(few).max(if rows > FEW { many } else { 0 })
    }

    /// Returns the bytes for `rows` rows that verify drafts of several sequences.
    pub fn verification(self, rows: usize, depth: usize) -> u64 {
        let scores = self.row(FEW, depth, |it| it.few_rows);
        rows as u64 * (scores + self.step_mask(FEW, depth) + self.sums_at(depth))
    }

    /// Returns the bytes of a row's scores per position in a long span, in layers without a window.
    pub fn row_scores(self) -> u64 {
        self.all.many_rows
    }

    /// Returns the bytes of a row's scores in a span of `rows` rows.
    fn row(self, rows: usize, depth: usize, of: fn(Scores) -> u64) -> u64 {
        (of(self.all) * depth as u64).max(of(self.windowed) * self.seen(rows, depth))
    }

    fn mask(self, rows: usize, depth: usize) -> u64 {
        self.masks * self.seen(rows, depth)
    }

    /// Returns the bytes of a row's masks in a step of several sequences. All layers with the same window share a mask.
    fn step_mask(self, rows: usize, depth: usize) -> u64 {
        let full = if self.sees_all { depth as u64 } else { 0 };
        self.heads * (full + self.masks.saturating_sub(1) * self.seen(rows, depth))
    }

    /// Returns the number of positions that a layer with a window attends to for a span.
    fn seen(self, rows: usize, depth: usize) -> u64 {
        depth.min(self.window + rows) as u64
    }

    fn sums_at(self, depth: usize) -> u64 {
        self.sums * blocks(depth)
    }
}

impl Scores {
    fn or(self, other: Self) -> Self {
        Self {
            one_row: self.one_row.max(other.one_row),
            few_rows: self.few_rows.max(other.few_rows),
            many_rows: self.many_rows.max(other.many_rows),
        }
    }
}

/// The attention of a layer on a device.
struct Layer {
    shape: Shape,
    windowed: bool,
    kernels: AttentionKernels,
}

impl Layer {
    fn new(
        attention: &AttentionConfig,
        value_width: usize,
        size: u64,
        windowed: bool,
        kernels: AttentionKernels,
    ) -> Self {
        let shape = Shape {
            query_heads: attention.num_heads,
            key_heads: attention.num_kv_heads,
            key_width: attention.head_dim,
            value_width,
            capped: attention.softcap.is_some(),
            size,
        };
        Self { shape, windowed, kernels }
    }

    fn body(&self, rows: usize) -> Body {
        self.shape.body(rows, usize::MAX, self.mask(rows), self.kernels)
    }

    /// The rows of a step share one call and need a mask to separate them.
    fn mask(&self, rows: usize) -> Mask {
        if rows <= FEW || self.windowed { Mask::Array } else { Mask::Causal }
    }

    fn scores(&self) -> Scores {
        Scores {
            one_row: self.scores_of(1),
            few_rows: (2..=FEW).map(|rows| self.scores_of(rows)).fold(0, u64::max),
            many_rows: self.scores_of(FEW + 1),
        }
    }

    fn scores_of(&self, rows: usize) -> u64 {
        let heads = self.shape.query_heads as u64;
        let copies = match self.body(rows) {
            // Scores, masked scores, softmax and one copy. Soft caps need three more.
            Body::WrittenOut => 4 + if self.shape.capped { 3 } else { 0 },
            // cuDNN adds a numeric mask to scores. MLX makes it for each head from the boolean mask and two arrays
            // (`scaled_dot_product_attention` in mlx/fast.cpp, 0.32.2).
            Body::Full if self.kernels == AttentionKernels::Cuda && self.mask(rows) == Mask::Array => 3,
            Body::Full | Body::Vector => 0,
        };
        let number = match self.kernels {
            // A CPU computes in f32.
            AttentionKernels::None => 4,
            AttentionKernels::Metal | AttentionKernels::Cuda => LAYERS_OF_SCORES * self.shape.size,
        };
        heads * copies * number
    }

    /// A sum of values, the largest score and the sum of weights for each block and head.
    fn sums(&self) -> u64 {
        let uses = (1..=FEW).any(|rows| self.body(rows) == Body::Vector);
        let block = self.shape.query_heads as u64 * (self.shape.value_width as u64 * self.shape.size + 8);
        if uses { LAYERS_OF_SUMS * block } else { 0 }
    }
}
