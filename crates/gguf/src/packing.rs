//! Converts blocks of GGUF into MLX's packing.
//!
//! MLX stores a quantized matrix as two or three tensors: codes, packed lowest bits first into a continuous bit stream per row; a scale per group of
//! neighbours; in affine mode also a bias per group. An element is `scale * code + bias`. GGUF stores blocks that contain codes and scales together, and
//! interleaves the codes of a block.
//!
//! Most types convert exactly: the f32 product and sum equal the numbers of the reference implementation bit for bit. Types with a scale per 16 elements
//! (Q6_K, Q3_K, Q2_K) do not, because MLX has no affine kernels for groups of 16; see [`merged`].

mod block;
mod classic;
mod fp4;
mod kind;
mod merged;
mod super_block;
mod ternary;

use crate::tensor_type::TensorType;
use block::Block;
pub use kind::{Mode, Packing};
pub(crate) use kind::{Part, ScaleType};

/// The conversion of a type.
#[derive(Debug, Clone, Copy)]
pub struct Conversion {
    /// The packing.
    pub packing: Packing,
    block_elements: usize,
    convert: fn(Part, &[u8], &mut [u8]),
}

impl Conversion {
    /// Returns the conversion of a quantized type, and `None` for floats and types that MLX's formats cannot hold.
    pub fn of(kind: TensorType) -> Option<Self> {
        Some(match kind {
            TensorType::Q4_0 => Self::with::<classic::Q4_0>(),
            TensorType::Q4_1 => Self::with::<classic::Q4_1>(),
            TensorType::Q5_0 => Self::with::<classic::Q5_0>(),
            TensorType::Q5_1 => Self::with::<classic::Q5_1>(),
            TensorType::Q8_0 => Self::with::<classic::Q8_0>(),
            TensorType::Iq4Nl => Self::with::<classic::Iq4Nl>(),
            TensorType::Q4K => Self::with::<super_block::Q4K>(),
            TensorType::Q5K => Self::with::<super_block::Q5K>(),
            TensorType::Iq4Xs => Self::with::<super_block::Iq4Xs>(),
            TensorType::Q2K => Self::with::<merged::Q2K>(),
            TensorType::Q3K => Self::with::<merged::Q3K>(),
            TensorType::Q6K => Self::with::<merged::Q6K>(),
            TensorType::Q1_0 => Self::with::<ternary::Q1_0>(),
            TensorType::Q2_0 => Self::with::<ternary::Q2_0>(),
            TensorType::Tq1_0 => Self::with::<ternary::Tq1_0>(),
            TensorType::Tq2_0 => Self::with::<ternary::Tq2_0>(),
            TensorType::Mxfp4 => Self::with::<fp4::Mxfp4>(),
            TensorType::Nvfp4 => Self::with::<fp4::Nvfp4>(),
            TensorType::F32 | TensorType::F16 | TensorType::BF16 | TensorType::Other(_) => return None,
        })
    }

    fn with<B: Block>() -> Self {
        Self { packing: B::PACKING, block_elements: B::ELEMENTS, convert: convert::<B> }
    }

    /// Bytes of a block in a tensor of the matrix.
    pub(crate) fn block_bytes(self, part: Part) -> usize {
        self.packing.part_bytes(part, self.block_elements)
    }

    /// Converts whole blocks. `out` takes [`block_bytes`](Self::block_bytes) a block.
    pub(crate) fn convert(self, part: Part, blocks: &[u8], out: &mut [u8]) {
        (self.convert)(part, blocks, out);
    }
}

fn convert<B: Block>(part: Part, blocks: &[u8], out: &mut [u8]) {
    let mut codes = [0; 256];
    let codes = &mut codes[..B::ELEMENTS];
    let blocks = blocks.chunks_exact(B::BYTES);
    for (block, out) in blocks.zip(out.chunks_exact_mut(B::PACKING.part_bytes(part, B::ELEMENTS))) {
        match part {
            Part::Weight => {
                B::codes(block, codes);
                pack(B::PACKING.bits, codes, out);
            }
            Part::Scales => B::scales(block, out),
            Part::Biases => B::biases(block, out),
        }
    }
}

/// Packs codes, lowest bits first. Eight codes of n bits take n bytes.
#[inline]
fn pack(bits: usize, codes: &[u8], out: &mut [u8]) {
    if bits == 8 {
        out.copy_from_slice(codes);
        return;
    }
    for (codes, out) in codes.as_chunks::<8>().0.iter().zip(out.chunks_exact_mut(bits)) {
        // Neighbours become pairs, pairs become fours, and fours become eight.
        let word = u64::from_le_bytes(*codes);
        let word = (word & 0x00ff_00ff_00ff_00ff) | ((word >> 8 & 0x00ff_00ff_00ff_00ff) << bits);
        let word = (word & 0x0000_ffff_0000_ffff) | ((word >> 16 & 0x0000_ffff_0000_ffff) << (2 * bits));
        let word = (word & 0xffff_ffff) | (word >> 32 << (4 * bits));
        out.copy_from_slice(&word.to_le_bytes()[..bits]);
    }
}
