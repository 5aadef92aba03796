//! Blocks of one bit or of three values per element, with one 16-bit scale. All are exact.

use super::block::{Block, half_at, spread, write_halves, write_negated};
use super::kind::{Packing, ScaleType};

pub(super) struct Q1_0;
pub(super) struct Q2_0;
pub(super) struct Tq1_0;
pub(super) struct Tq2_0;

/// A bit selects the scale or its negation.
impl Block for Q1_0 {
    const ELEMENTS: usize = 128;
    const BYTES: usize = 18;
    const PACKING: Packing = Packing::affine(1, 128, ScaleType::F16);

    fn codes(block: &[u8], codes: &mut [u8]) {
        for (bits, codes) in block[2..].iter().zip(codes.as_chunks_mut::<8>().0) {
            *codes = spread(*bits).to_le_bytes();
        }
    }

    fn scales(block: &[u8], out: &mut [u8]) {
        write_halves([2.0 * half_at(block, 0)], out);
    }

    fn biases(block: &[u8], out: &mut [u8]) {
        write_negated(block, 0, 0, out);
    }
}

impl Block for Q2_0 {
    const ELEMENTS: usize = 64;
    const BYTES: usize = 18;
    const PACKING: Packing = Packing::affine(2, 64, ScaleType::F16);

    fn codes(block: &[u8], codes: &mut [u8]) {
        for (bits, codes) in block[2..].iter().zip(codes.as_chunks_mut::<4>().0) {
            *codes = std::array::from_fn(|index| bits >> (2 * index) & 3);
        }
    }

    fn biases(block: &[u8], out: &mut [u8]) {
        write_negated(block, 0, 0, out);
    }
}

/// Five codes of three values are the digits of a fraction with the denominator 256, most significant first.
impl Block for Tq1_0 {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 54;
    const PACKING: Packing = Packing::affine(2, 128, ScaleType::F16);

    fn codes(block: &[u8], codes: &mut [u8]) {
        let runs = [(0..32, 5), (32..48, 5), (48..52, 4)];
        let mut codes = codes.iter_mut();
        for (range, digits) in runs {
            for power in [1u8, 3, 9, 27, 81].into_iter().take(digits) {
                for (byte, code) in block[range.clone()].iter().zip(&mut codes) {
                    *code = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8;
                }
            }
        }
    }

    fn scales(block: &[u8], out: &mut [u8]) {
        write_halves([half_at(block, 52); 2], out);
    }

    fn biases(block: &[u8], out: &mut [u8]) {
        write_halves([-half_at(block, 52); 2], out);
    }
}

impl Block for Tq2_0 {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 66;
    const PACKING: Packing = Packing::affine(2, 128, ScaleType::F16);

    fn codes(block: &[u8], codes: &mut [u8]) {
        for (bytes, codes) in block[..64].chunks_exact(32).zip(codes.chunks_exact_mut(128)) {
            for (index, codes) in codes.chunks_exact_mut(32).enumerate() {
                for (bits, code) in bytes.iter().zip(codes) {
                    *code = bits >> (2 * index) & 3;
                }
            }
        }
    }

    fn scales(block: &[u8], out: &mut [u8]) {
        write_halves([half_at(block, 64); 2], out);
    }

    fn biases(block: &[u8], out: &mut [u8]) {
        write_halves([-half_at(block, 64); 2], out);
    }
}
