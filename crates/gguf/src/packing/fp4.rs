//! Blocks of 4-bit floats with one byte per group as the scale. Codes and scales equal those in MLX; only the order of codes differs.

use super::block::{Block, nibbles};
use super::kind::{Mode, Packing, ScaleType};

pub(super) struct Mxfp4;
pub(super) struct Nvfp4;

impl Block for Mxfp4 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 17;
    const PACKING: Packing = Packing { mode: Mode::Mxfp4, bits: 4, group_size: 32, scales: ScaleType::U8 };

    fn codes(block: &[u8], codes: &mut [u8]) {
        nibbles(&block[1..], codes);
    }

    fn scales(block: &[u8], out: &mut [u8]) {
        out[0] = block[0];
    }
}

impl Block for Nvfp4 {
    const ELEMENTS: usize = 64;
    const BYTES: usize = 36;
    const PACKING: Packing = Packing { mode: Mode::Nvfp4, bits: 4, group_size: 16, scales: ScaleType::U8 };

    fn codes(block: &[u8], codes: &mut [u8]) {
        for (bytes, codes) in block[4..].chunks_exact(8).zip(codes.chunks_exact_mut(16)) {
            nibbles(bytes, codes);
        }
    }

    fn scales(block: &[u8], out: &mut [u8]) {
        for (byte, out) in block[..4].iter().zip(out) {
            // GGUF ignores the sign, and reads the code of NaN as 0.
            *out = Some(byte & 127).filter(|byte| *byte != 127).unwrap_or(0);
        }
    }
}
