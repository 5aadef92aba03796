//! Blocks of 256 elements with a scale per 16. Two groups of 16 become one of 32, which cannot be exact.
//!
//! The step of the merged group is the scale of one of the two groups, divided by the largest whole number with which the codes still cover both
//! groups. That group remains exact; the other is rounded. Q2_K has a minimum per group, so its step follows from the range.
//! Scales and biases are 16-bit floats: codes are chosen for the rounded numbers, and f32 would change the errors below by less than 0.005 %.
//!
//! The table shows the rms of the added error relative to the rms of the weights. No file with Q3_K or Q2_K was at hand: their blocks were made from
//! weights of Gemma. Their own error is the difference to these weights.
//!
//! | type | weights | own error | 4 bits | 5 bits | 6 bits | 8 bits | bf16 |
//! | --- | --- | --- | --- | --- | --- | --- | --- |
//! | Q6_K | Gemma 3 270M Q4_K_M | | 8.5 % | 4.1 % | 1.6 % | 0.38 % | 0.16 % |
//! | Q6_K | random blocks | | 7.3 % | 3.5 % | 1.3 % | 0.33 % | 0.16 % |
//! | Q3_K | Gemma 3 270M | 15.5 % | 5.9 % | 2.7 % | 1.3 % | 0.30 % | 0.17 % |
//! | Q2_K | Gemma 3 270M | 28.0 % | 6.6 % | 3.6 % | 1.5 % | 0.38 % | 0.17 % |
//!
//! Q6_K takes 8 bits; a step from the range would give 0.48 %. Q3_K and Q2_K take 5 bits, which make a matrix of 6 bits an element with scales and
//! biases: their own squared error grows by 3.1 % and 1.6 %.

use std::array::from_fn;

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::block::{Block, half_at, write_halves};
use super::kind::{Packing, ScaleType};

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

/// The scales and biases of the merged groups of a block.
struct Grids {
    scales: [f32; 8],
    biases: [f32; 8],
}

impl Decoded {
    /// Chooses the grids. All groups take each step together, so that the compiler can use vectors.
    fn grids<D: Decode>(&self) -> Grids {
        let top = ((1 << D::BITS) - 1) as f32;
        let words = self.codes.as_chunks::<8>().0;
        let codes: [[u64; 2]; 16] =
            from_fn(|half| [2 * half, 2 * half + 1].map(|word| u64::from_le_bytes(words[word])));
        let end = |half: usize, code: u8| self.scales[half] * f32::from(code) + self.offsets[half];
        let first: [f32; 16] = from_fn(|half| end(half, smallest(codes[half])));
        let last: [f32; 16] = from_fn(|half| end(half, largest(codes[half])));
        let lows: [f32; 16] = from_fn(|half| least(first[half], last[half]));
        let highs: [f32; 16] = from_fn(|half| -least(-first[half], -last[half]));
        let lows: [f32; 8] = from_fn(|group| least(lows[2 * group], lows[2 * group + 1]));
        let highs: [f32; 8] = from_fn(|group| -least(-highs[2 * group], -highs[2 * group + 1]));
        let mut scales: [f32; 8] = from_fn(|group| (highs[group] - lows[group]) / top);
        if !D::ALIGNED {
            return Grids { scales: to_halves(scales), biases: to_halves(lows) };
        }
        let steps: [f32; 16] = from_fn(|half| aligned_step(self.scales[half].abs(), scales[half / 2]));
        scales = to_halves(from_fn(|group| {
            let step = least(steps[2 * group], steps[2 * group + 1]);
            if step < f32::INFINITY { step } else { scales[group] }
        }));
        let zeros: [f32; 8] = from_fn(|group| round(lows[group] / scales[group]) * scales[group]);
        // A group of one value has the scale 0.
        let biases = from_fn(|group| if scales[group] > 0.0 { zeros[group] } else { lows[group] });
        Grids { scales, biases: to_halves(biases) }
    }
}

/// Returns the part of `scale` that is at least `step`, or infinity if there is none.
#[inline]
fn aligned_step(scale: f32, step: f32) -> f32 {
    // The additional 0.001 leaves space for the rounding of the zero point.
    let aligned = scale / round(scale / step - 0.501);
    if aligned > 0.0 { aligned } else { f32::INFINITY }
}

/// Returns the smaller number, and NaN for NaN.
#[inline]
fn least(one: f32, other: f32) -> f32 {
    if one < other { one } else { other }
}

/// Returns the smallest of 16 codes below 128, eight at a time.
#[inline]
fn smallest(codes: [u64; 2]) -> u8 {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let smaller = |one: u64, other: u64| {
        // The highest bit of each byte shows that `one` is not smaller; then it fills the byte.
        let bits = (((one | HIGH) - other) & HIGH) >> 7;
        let mask = (bits << 8).wrapping_sub(bits);
        other & mask | one & !mask
    };
    let eight = smaller(codes[0], codes[1]);
    let four = smaller(eight, eight >> 32);
    let two = smaller(four, four >> 16);
    smaller(two, two >> 8) as u8
}

/// Returns the largest of 16 codes below 128.
#[inline]
fn largest(codes: [u64; 2]) -> u8 {
    127 - smallest(codes.map(|codes| codes ^ 0x7f7f_7f7f_7f7f_7f7f))
}

/// Rounds a number below 2^22. `f32::round` is a slow call on x86.
#[inline]
fn round(number: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (number + SHIFT) - SHIFT
}

/// Rounds numbers to 16-bit floats.
fn to_halves(numbers: [f32; 8]) -> [f32; 8] {
    let mut halves = [f16::ZERO; 8];
    halves.convert_from_f32_slice(&numbers);
    let mut numbers = [0.0; 8];
    halves.convert_to_f32_slice(&mut numbers);
    numbers
}

fn codes<D: Decode>(block: &[u8], out: &mut [u8]) {
    let decoded = D::decode(block);
    let grids = decoded.grids::<D>();
    let top = ((1 << D::BITS) - 1) as f32;
    for (half, (codes, out)) in
        decoded.codes.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<16>().0).enumerate()
    {
        let (scale, bias) = (grids.scales[half / 2], grids.biases[half / 2]);
        // A group of one value has the scale 0.
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let factor = decoded.scales[half] * inverse;
        let offset = (decoded.offsets[half] - bias) * inverse;
        for (code, out) in codes.iter().zip(out) {
            // After the addition the lowest bits of the float are the rounded code. Unlike a cast it needs no branch.
            let code = (f32::from(*code) * factor + offset).max(0.0).min(top) + 8_388_608.0;
            *out = code.to_bits() as u8;
        }
    }
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
        let scales = from_fn(|group| scale * f32::from(block[192 + group] as i8));
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
        let scales = from_fn(|group| {
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
        let scales = from_fn(|group| scale * f32::from(block[group] & 15));
        let offsets = from_fn(|group| -(minimum * f32::from(block[group] >> 4)));
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
                write_halves(Self::decode(block).grids::<Self>().scales, out);
            }

            fn biases(block: &[u8], out: &mut [u8]) {
                write_halves(Self::decode(block).grids::<Self>().biases, out);
            }
        }
    )*};
}

blocks!(Q2K: 84, Q3K: 110, Q6K: 210);
