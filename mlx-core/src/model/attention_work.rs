//! The memory of attention in a pass, beside keys and values. Invariant: pure, from the shape of the model and the kernels of the device.

use std::collections::BTreeSet;

use super::attention::AttentionConfig;
use super::attention::body::{Body, Mask, Shape};
use super::config::DecoderConfig;
use super::mixer::MixerKind;
use crate::backend::AttentionKernels;

/// Spans of up to this many rows go through other kernels than longer ones.
const FEW: usize = 8;

/// Layers whose scores exist at once on a GPU. MLX issues up to ten command buffers ahead (`MAX_ACTIVE_TASKS` in mlx/transforms.cpp, 0.32.2)
/// and frees what they read when they end; arrays as large as scores fill one each.
const LAYERS_OF_SCORES: u64 = 2;

/// Layers whose partial sums exist at once on a GPU: these are smaller.
const LAYERS_OF_SUMS: u64 = 4;

/// The most blocks of positions for which a vector kernel writes partial sums (`sdpa_vector_2pass` in
/// mlx/backend/metal/scaled_dot_product_attention.cpp, 0.32.2; on CUDA they are fewer).
fn blocks(depth: usize) -> u64 {
    match depth {
        0..=8192 => 128,
        8193..=16_383 => 256,
        16_384..=65_535 => 512,
        _ => 1024,
    }
}

/// Bytes that attention takes in a pass, beside keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AttentionWork {
    /// In layers that see all positions.
    all: Scores,
    /// In layers with a window.
    windowed: Scores,
    /// The widest window.
    window: usize,
    /// Masks of windows, of a byte for each row and position: one for each width, and one that the next is made from.
    masks: u64,
    /// Heads of the masks of steps. They are written out: a byte for each head, row and position.
    heads: u64,
    /// Layers that see all positions exist.
    sees_all: bool,
    /// Bytes of a row's partial sums for each block of positions.
    sums: u64,
}

/// Bytes of scores for each row and position of a span; 0 if kernels write none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Scores {
    one_row: u64,
    few_rows: u64,
    many_rows: u64,
}

impl AttentionWork {
    /// For numbers of `size` bytes.
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

    /// Bytes for a span of up to `rows` rows that see up to `depth` positions.
    pub fn span(self, rows: usize, depth: usize) -> u64 {
        // It may be shorter.
        let one = self.row(1, depth, |it| it.one_row) + self.step_mask(1, depth) + self.sums_at(depth);
        let few = if rows > 1 { self.verification(rows.min(FEW), depth) } else { 0 };
        let many = rows as u64 * (self.row(rows, depth, |it| it.many_rows) + self.mask(rows, depth));
        one.max(few).max(if rows > FEW { many } else { 0 })
    }

    /// Bytes for `rows` rows of verification, a few of each of several sequences.
    pub fn verification(self, rows: usize, depth: usize) -> u64 {
        let scores = self.row(FEW, depth, |it| it.few_rows);
        rows as u64 * (scores + self.step_mask(FEW, depth) + self.sums_at(depth))
    }

    /// Bytes of the scores of a row of a long span for each position, in layers that see all positions.
    pub fn row_scores(self) -> u64 {
        self.all.many_rows
    }

    /// Bytes of a row's scores in a span of `rows` rows.
    fn row(self, rows: usize, depth: usize, of: fn(Scores) -> u64) -> u64 {
        (of(self.all) * depth as u64).max(of(self.windowed) * self.seen(rows, depth))
    }

    fn mask(self, rows: usize, depth: usize) -> u64 {
        self.masks * self.seen(rows, depth)
    }

    /// Bytes of the masks of a row that shares a step with others. All layers use the same, one for each window.
    fn step_mask(self, rows: usize, depth: usize) -> u64 {
        let full = if self.sees_all { depth as u64 } else { 0 };
        self.heads * (full + self.masks.saturating_sub(1) * self.seen(rows, depth))
    }

    /// The positions that a layer with a window gets for a span.
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

    /// The rows of a step attend together, under a mask that tells them apart.
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
            // The scores, their mask, the softmax and one copy; capped ones some more.
            Body::WrittenOut => 4 + if self.shape.capped { 3 } else { 0 },
            // cuDNN adds a mask of numbers to scores, which MLX makes of ours for each head, from two arrays
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
