//! Blocks of 32 elements with a 16-bit scale. All are exact.

use super::block::{Block, nibbles, spread, write_negated};
use super::kind::{Packing, ScaleType};

/// The numbers of the 16 codes of IQ4_NL and IQ4_XS, plus 128.
const TABLE: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;
pub(super) struct Q8_0;
pub(super) struct Iq4Nl;

/// Replaces codes by their numbers in [`TABLE`].
pub(super) fn look_up(codes: &mut [u8]) {
    for code in codes {
        *code = TABLE[usize::from(*code)];
    }
}

/// Adds bit 4 of 32 codes.
fn fifth_bits(bits: &[u8], codes: &mut [u8]) {
    for (bits, codes) in bits.iter().zip(codes.as_chunks_mut::<8>().0) {
        *codes = (u64::from_le_bytes(*codes) | spread(*bits) << 4).to_le_bytes();
    }
}

impl Block for Q4_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 18;
    const PACKING: Packing = Packing::affine(4, 32, ScaleType::F16);

    fn codes(block: &[u8], codes: &mut [u8]) {
        nibbles(&block[2..], codes);
    }

    fn biases(block: &[u8], out: &mut [u8]) {
        write_negated(block, 0, 3, out);
    }
}

impl Block for Q4_1 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 20;
    const PACKING: Packing = Packing::affine(4, 32, ScaleType::F16);

    fn codes(block: &[u8], codes: &mut [u8]) {
        nibbles(&block[4..], codes);
    }

    fn biases(block: &[u8], out: &mut [u8]) {
        out.copy_from_slice(&block[2..4]);
    }
}

impl Block for Q5_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 22;
    const PACKING: Packing = Packing::affine(5, 32, ScaleType::F16);

    fn codes(block: &[u8], codes: &mut [u8]) {
        nibbles(&block[6..], codes);
        fifth_bits(&block[2..6], codes);
    }

    fn biases(block: &[u8], out: &mut [u8]) {
        write_negated(block, 0, 4, out);
    }
}

impl Block for Q5_1 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 24;
    const PACKING: Packing = Packing::affine(5, 32, ScaleType::F16);

    fn codes(block: &[u8], codes: &mut [u8]) {
        nibbles(&block[8..], codes);
        fifth_bits(&block[4..8], codes);
    }

    fn biases(block: &[u8], out: &mut [u8]) {
        out.copy_from_slice(&block[2..4]);
    }
}

impl Block for Q8_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 34;
    const PACKING: Packing = Packing::affine(8, 32, ScaleType::F16);

    fn codes(block: &[u8], codes: &mut [u8]) {
        for (byte, code) in block[2..].iter().zip(codes) {
            *code = byte ^ 128;
        }
    }

    fn biases(block: &[u8], out: &mut [u8]) {
        write_negated(block, 0, 7, out);
    }
}

impl Block for Iq4Nl {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 18;
    const PACKING: Packing = Packing::affine(8, 32, ScaleType::F16);

    fn codes(block: &[u8], codes: &mut [u8]) {
        nibbles(&block[2..], codes);
        look_up(codes);
    }

    fn biases(block: &[u8], out: &mut [u8]) {
        write_negated(block, 0, 7, out);
    }
}
