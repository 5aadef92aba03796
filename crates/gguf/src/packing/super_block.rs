//! Blocks of 256 elements with a scale per 32. Exact with f32 scales: a 16-bit scale of the block times a 6-bit one has 17 bits.

use super::block::{Block, half_at, nibbles, write_floats};
use super::classic::look_up;
use super::kind::{Packing, ScaleType};

pub(super) struct Q4K;
pub(super) struct Q5K;
pub(super) struct Iq4Xs;

/// Unpacks eight 6-bit scales and eight 6-bit minimums from 12 bytes.
fn scales_and_minimums(bytes: &[u8]) -> [(u8, u8); 8] {
    std::array::from_fn(|group| {
        if group < 4 {
            (bytes[group] & 63, bytes[group + 4] & 63)
        } else {
            let low = bytes[group + 4];
            (low & 15 | bytes[group - 4] >> 6 << 4, low >> 4 | bytes[group] >> 6 << 4)
        }
    })
}

fn write_scales(block: &[u8], out: &mut [u8]) {
    let scale = half_at(block, 0);
    write_floats(scales_and_minimums(&block[4..16]).map(|(code, _)| scale * f32::from(code)), out);
}

fn write_minimums(block: &[u8], out: &mut [u8]) {
    let scale = half_at(block, 2);
    write_floats(scales_and_minimums(&block[4..16]).map(|(_, code)| -(scale * f32::from(code))), out);
}

impl Block for Q4K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 144;
    const PACKING: Packing = Packing::affine(4, 32, ScaleType::F32);

    fn codes(block: &[u8], codes: &mut [u8]) {
        for (bytes, codes) in block[16..].chunks_exact(32).zip(codes.chunks_exact_mut(64)) {
            nibbles(bytes, codes);
        }
    }

    fn scales(block: &[u8], out: &mut [u8]) {
        write_scales(block, out);
    }

    fn biases(block: &[u8], out: &mut [u8]) {
        write_minimums(block, out);
    }
}

impl Block for Q5K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 176;
    const PACKING: Packing = Packing::affine(5, 32, ScaleType::F32);

    fn codes(block: &[u8], codes: &mut [u8]) {
        for (bytes, codes) in block[48..].chunks_exact(32).zip(codes.chunks_exact_mut(64)) {
            nibbles(bytes, codes);
        }
        for (group, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (bits, code) in block[16..48].iter().zip(codes) {
                *code |= (bits >> group & 1) << 4;
            }
        }
    }

    fn scales(block: &[u8], out: &mut [u8]) {
        write_scales(block, out);
    }

    fn biases(block: &[u8], out: &mut [u8]) {
        write_minimums(block, out);
    }
}

impl Iq4Xs {
    fn group_scales(block: &[u8]) -> [f32; 8] {
        let scale = half_at(block, 0);
        let high = u16::from_le_bytes([block[2], block[3]]);
        std::array::from_fn(|group| {
            let low = block[4 + group / 2] >> (group % 2 * 4) & 15;
            let high = (high >> (2 * group) & 3) as u8;
            scale * (f32::from(low | high << 4) - 32.0)
        })
    }
}

impl Block for Iq4Xs {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 136;
    const PACKING: Packing = Packing::affine(8, 32, ScaleType::F32);

    fn codes(block: &[u8], codes: &mut [u8]) {
        for (bytes, codes) in block[8..].chunks_exact(16).zip(codes.chunks_exact_mut(32)) {
            nibbles(bytes, codes);
        }
        look_up(codes);
    }

    fn scales(block: &[u8], out: &mut [u8]) {
        write_floats(Self::group_scales(block), out);
    }

    fn biases(block: &[u8], out: &mut [u8]) {
        write_floats(Self::group_scales(block).map(|scale| -128.0 * scale), out);
    }
}
