//! Predicts which attention kernel MLX 0.32.2 runs for a shape. Invariant: pure. Where the choice depends on something unknown here, it
//! returns the kernel that needs more memory.

use crate::backend::AttentionKernels;

/// An implementation of attention, classified by its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model) enum Body {
    /// One kernel that holds the scores of a tile in registers.
    Full,
    /// One kernel for a few rows. For many positions it writes partial sums for each row and block of positions.
    Vector,
    /// Separate products, mask and softmax, over scores of `[heads, rows, depth]`.
    WrittenOut,
}

/// The mask of a span. `Causal` includes no mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model) enum Mask {
    Causal,
    /// An array.
    Array,
}

/// The shape of a layer's attention, without rows and depth.
#[derive(Debug, Clone, Copy)]
pub(in crate::model) struct Shape {
    pub(in crate::model) query_heads: usize,
    pub(in crate::model) key_heads: usize,
    pub(in crate::model) key_width: usize,
    pub(in crate::model) value_width: usize,
    /// MLX's operation has no soft caps, so such layers use separate operations. Sinks have no effect.
    pub(in crate::model) capped: bool,
    /// Bytes of a number.
    pub(in crate::model) size: u64,
}

impl Shape {
    /// Returns the kernel for a span of `rows` rows that attends to `depth` positions, including its own.
    pub(in crate::model) fn body(
        self,
        rows: usize,
        depth: usize,
        mask: Mask,
        kernels: AttentionKernels,
    ) -> Body {
        match kernels {
            _ if self.capped => Body::WrittenOut,
            AttentionKernels::None => Body::WrittenOut,
            AttentionKernels::Metal => self.on_metal(rows, depth),
            AttentionKernels::Cuda => self.on_cuda(rows, mask),
        }
    }

    /// `has_fused_kernel` and `use_fallback` in mlx/backend/metal/scaled_dot_product_attention.cpp (0.32.2). An M5 also has a kernel for heads
    /// of 256, but only from 1024 rows on and without an array mask. Our chunks are shorter.
    fn on_metal(self, rows: usize, depth: usize) -> Body {
        let even = self.key_width == self.value_width;
        if rows > 8 {
            let full = even && matches!(self.key_width, 64 | 72 | 80 | 96 | 128);
            return if full { Body::Full } else { Body::WrittenOut };
        }
        let known = match self.key_width {
            64 | 96 | 128 | 256 => even,
            192 => self.value_width == 128,
            _ => false,
        };
        let few = rows <= depth && rows * (self.query_heads / self.key_heads) <= 32;
        if known && few { Body::Vector } else { Body::WrittenOut }
    }

    /// `supports_sdpa_cudnn` in mlx/backend/cuda/scaled_dot_product_attention.cpp and `supports_sdpa_vector` in the .cu file next to it
    /// (0.32.2), for Ampere and later. cuDNN accepts a single row only if the cache is a slice of a certain form, which is unknown when the
    /// graph is built.
    fn on_cuda(self, rows: usize, mask: Mask) -> Body {
        let narrow = |width: usize| width.is_multiple_of(8) && width <= 128;
        if rows > 1 && self.size == 2 && narrow(self.key_width) && narrow(self.value_width) {
            return Body::Full;
        }
        let known = self.key_width == self.value_width && matches!(self.key_width, 64 | 96 | 128);
        if rows < 4 && known && mask != Mask::Array { Body::Vector } else { Body::WrittenOut }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(query_heads: usize, key_heads: usize, width: usize) -> Shape {
        Shape { query_heads, key_heads, key_width: width, value_width: width, capped: false, size: 2 }
    }

    fn metal(shape: Shape, rows: usize) -> Body {
        shape.body(rows, 4096, Mask::Causal, AttentionKernels::Metal)
    }

    fn cuda(shape: Shape, rows: usize, mask: Mask) -> Body {
        shape.body(rows, 4096, mask, AttentionKernels::Cuda)
    }

    #[test]
    fn metal_has_kernels_for_some_widths_at_some_numbers_of_rows() {
        let llama = shape(32, 8, 128);
        assert_eq!(
            [1, 8, 9, 512].map(|rows| metal(llama, rows)),
            [Body::Vector, Body::Vector, Body::Full, Body::Full]
        );
        // Eight query heads for each key head: at most four rows.
        assert_eq!(
            [4, 5, 9].map(|rows| metal(shape(32, 4, 128), rows)),
            [Body::Vector, Body::WrittenOut, Body::Full]
        );
        // Gemma's heads have a kernel for steps and none for prompts. Phi's heads are the opposite.
        assert_eq!([1, 64].map(|rows| metal(shape(16, 8, 256), rows)), [Body::Vector, Body::WrittenOut]);
        assert_eq!([1, 64].map(|rows| metal(shape(32, 32, 80), rows)), [Body::WrittenOut, Body::Full]);
        let latent = Shape { key_width: 576, value_width: 512, ..shape(128, 1, 0) };
        assert_eq!([1, 64].map(|rows| metal(latent, rows)), [Body::WrittenOut; 2]);
        assert_eq!(metal(Shape { value_width: 128, ..shape(16, 16, 192) }, 1), Body::Vector);
        assert_eq!(metal(shape(16, 16, 192), 1), Body::WrittenOut);
        assert_eq!(metal(Shape { capped: true, ..llama }, 1), Body::WrittenOut);
    }

    #[test]
    fn cuda_has_kernels_for_halves_of_narrow_heads() {
        let llama = shape(32, 8, 128);
        assert_eq!(
            [1, 2, 512].map(|rows| cuda(llama, rows, Mask::Causal)),
            [Body::Vector, Body::Full, Body::Full]
        );
        assert_eq!(cuda(llama, 512, Mask::Array), Body::Full);
        let singles = Shape { size: 4, ..llama };
        assert_eq!([3, 4].map(|rows| cuda(singles, rows, Mask::Causal)), [Body::Vector, Body::WrittenOut]);
        assert_eq!(cuda(singles, 3, Mask::Array), Body::WrittenOut);
        assert_eq!([1, 64].map(|rows| cuda(shape(16, 8, 256), rows, Mask::Causal)), [Body::WrittenOut; 2]);
        assert_eq!(cuda(shape(32, 32, 80), 1, Mask::Causal), Body::WrittenOut);
    }

    #[test]
    fn a_cpu_writes_everything_out() {
        assert_eq!(shape(32, 8, 128).body(1, 1, Mask::Causal, AttentionKernels::None), Body::WrittenOut);
    }
}
