//! Blocks of 256 elements with a scale per 16. Two groups of 16 become one of 32, which cannot be exact.
//!
//! The step of the merged group is the scale of one of the two groups divided by the largest whole number that still covers the range of both. That
//! group stays exact, and only the other is rounded. Scales are 16-bit floats: codes are chosen for the rounded scale and bias, so f32 would not help
//! (differences below 0.003 % in all rows). The table shows the rms of the added error relative to the rms of the weights.
//!
//! | type | weights | 4 bits | 5 bits | 6 bits | 8 bits | as bf16 |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | Q6_K | Gemma 3 270M Q4_K_M | | | | 0.37 % | 0.16 % |
//! | Q6_K | random blocks | | | | 0.32 % | 0.16 % |
//! | Q3_K | Gemma 3 270M, own error 15.5 % | 5.5 % | 2.4 % | 1.1 % | 0.26 % | 0.17 % |
//! | Q2_K | Gemma 3 270M, own error 28 % | 6.6 % | 3.6 % | 1.5 % | 0.38 % | 0.17 % |
//!
//! Q3_K and Q2_K take 5 bits: the squared error grows by at most 2.5 % of the type's own, and the matrix takes 6 bits an element. For a step from the
//! range only (8 bits, Q6_K) the error is 0.48 %.

use super::{Block, Packing, ScaleType, half_at, write_halves};

pub(super) struct Q2K;
pub(super) struct Q3K;
pub(super) struct Q6K;

/// A decoded block: element `n` is `scales[n / 16] * codes[n] + offsets[n / 16]`.
struct Decoded {
    codes: [u8; 256],
    scales: [f32; 16],
    offsets: [f32; 16],
}

/// A type that decodes a block. `ALIGNED` types have codes around 0, so a step that divides a scale represents the elements exactly.
trait Decode {
    const BITS: usize;
    const ALIGNED: bool;

    fn decode(block: &[u8]) -> Decoded;
}

/// The scale and bias of a merged group.
#[derive(Clone, Copy)]
struct Grid {
    scale: f32,
    bias: f32,
}

impl Decoded {
    /// Returns the grid of the merged group.
    fn grid<D: Decode>(&self, group: usize) -> Grid {
        let halves = [group * 2, group * 2 + 1];
        let (mut low, mut high) = (f32::INFINITY, f32::NEG_INFINITY);
        for half in halves {
            let codes = &self.codes.as_chunks::<16>().0[half];
            for code in [extreme(codes, u8::min), extreme(codes, u8::max)] {
                let value = self.scales[half] * f32::from(code) + self.offsets[half];
                // Comparisons in this order keep NaN.
                low = if low < value { low } else { value };
                high = if high > value { high } else { value };
            }
        }
        let least = (high - low) / ((1 << D::BITS) - 1) as f32;
        let aligned = halves
            .map(|half| self.scales[half].abs())
            .into_iter()
            // The margin leaves space for the rounding of the zero point. A cast rounds down, and `floor` is a slow call on x86.
            .map(|scale| scale / ((scale / least - 0.001) as i32 as f32))
            .filter(|step| D::ALIGNED && step.is_finite() && *step > 0.0)
            .reduce(f32::min);
        let scale = to_half(aligned.unwrap_or(least));
        let bias = if scale > 0.0 && aligned.is_some() { round(low / scale) * scale } else { low };
        Grid { scale, bias: to_half(bias) }
    }
}

/// Returns the smallest or largest of 16 codes. Halves are compared so that the compiler uses vectors.
#[inline]
fn extreme(codes: &[u8; 16], choose: impl Fn(u8, u8) -> u8) -> u8 {
    let eight: [u8; 8] = std::array::from_fn(|index| choose(codes[index], codes[index + 8]));
    let four: [u8; 4] = std::array::from_fn(|index| choose(eight[index], eight[index + 4]));
    choose(choose(four[0], four[1]), choose(four[2], four[3]))
}

/// Rounds a number below 2^22. `f32::round` is a slow call on x86.
fn round(number: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (number + SHIFT) - SHIFT
}

fn to_half(number: f32) -> f32 {
    half::f16::from_f32(number).to_f32()
}

fn codes<D: Decode>(block: &[u8], out: &mut [u8]) {
    let decoded = D::decode(block);
    let top = ((1 << D::BITS) - 1) as f32;
    for group in 0..8 {
        let grid = decoded.grid::<D>(group);
        // A group of one value has the scale 0.
        let inverse = if grid.scale > 0.0 { 1.0 / grid.scale } else { 0.0 };
        for half in [group * 2, group * 2 + 1] {
            let factor = decoded.scales[half] * inverse;
            let offset = (decoded.offsets[half] - grid.bias) * inverse;
            let elements = half * 16..half * 16 + 16;
            for (code, out) in decoded.codes[elements.clone()].iter().zip(&mut out[elements]) {
                // After the addition the lowest bits of the float are the rounded code. Unlike a cast it needs no branch.
                let code = (f32::from(*code) * factor + offset).max(0.0).min(top) + 8_388_608.0;
                *out = code.to_bits() as u8;
            }
        }
    }
}

fn grids<D: Decode>(block: &[u8]) -> [Grid; 8] {
    let decoded = D::decode(block);
    std::array::from_fn(|group| decoded.grid::<D>(group))
}

/// Decodes the 2 bits of elements of Q2_K and Q3_K.
fn two_bits(bytes: &[u8], codes: &mut [u8; 256]) {
    for (row, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (byte, code) in bytes[row / 4 * 32..].iter().zip(codes) {
            *code = byte >> (row % 4 * 2) & 3;
        }
    }
}

impl Decode for Q6K {
    const BITS: usize = 8;
    const ALIGNED: bool = true;

    fn decode(block: &[u8]) -> Decoded {
        let mut codes = [0; 256];
        for (row, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (half, quarter) = (row / 4, row % 4);
            let low = &block[half * 64 + quarter % 2 * 32..][..32];
            let high = &block[128 + half * 32..][..32];
            for ((low, high), code) in low.iter().zip(high).zip(codes) {
                *code = low >> (quarter / 2 * 4) & 15 | (high >> (quarter * 2) & 3) << 4;
            }
        }
        let scale = half_at(block, 208);
        let scales = std::array::from_fn(|group| scale * f32::from(block[192 + group] as i8));
        Decoded { codes, scales, offsets: scales.map(|scale| -32.0 * scale) }
    }
}

impl Decode for Q3K {
    const BITS: usize = 5;
    const ALIGNED: bool = true;

    fn decode(block: &[u8]) -> Decoded {
        let mut codes = [0; 256];
        two_bits(&block[32..96], &mut codes);
        for (row, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (bits, code) in block[..32].iter().zip(codes) {
                *code |= (bits >> row & 1) << 2;
            }
        }
        let scale = half_at(block, 108);
        let packed = &block[96..108];
        let scales = std::array::from_fn(|group| {
            let low = packed[group % 8] >> (group / 8 * 4) & 15;
            let high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
            scale * (f32::from(low | high << 4) - 32.0)
        });
        Decoded { codes, scales, offsets: scales.map(|scale| -4.0 * scale) }
    }
}

impl Decode for Q2K {
    const BITS: usize = 5;
    const ALIGNED: bool = false;

    fn decode(block: &[u8]) -> Decoded {
        let mut codes = [0; 256];
        two_bits(&block[16..80], &mut codes);
        let (scale, minimum) = (half_at(block, 80), half_at(block, 82));
        let scales = std::array::from_fn(|group| scale * f32::from(block[group] & 15));
        let offsets = std::array::from_fn(|group| -(minimum * f32::from(block[group] >> 4)));
        Decoded { codes, scales, offsets }
    }
}

macro_rules! blocks {
    ($($kind:ident: $bytes:literal),*) => {$(
        impl Block for $kind {
            const ELEMENTS: usize = 256;
            const BYTES: usize = $bytes;
            const PACKING: Packing = Packing::affine(<Self as Decode>::BITS, 32, ScaleType::F16);

            fn codes(block: &[u8], out: &mut [u8]) {
                codes::<Self>(block, out);
            }

            fn scales(block: &[u8], out: &mut [u8]) {
                write_halves(grids::<Self>(block).map(|grid| grid.scale), out);
            }

            fn biases(block: &[u8], out: &mut [u8]) {
                write_halves(grids::<Self>(block).map(|grid| grid.bias), out);
            }
        }
    )*};
}

blocks!(Q2K: 84, Q3K: 110, Q6K: 210);
