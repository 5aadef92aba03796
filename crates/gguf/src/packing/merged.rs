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

/// A decoded block: the elements and the scale of each 16.
struct Decoded {
    values: [f32; 256],
    scales: [f32; 16],
}

/// A type that decodes a block. `ALIGNED` types have codes around 0, so a step that divides a scale represents the elements exactly.
trait Decode {
    const BITS: usize;
    const ALIGNED: bool;

    fn decode(block: &[u8]) -> Decoded;
}

/// Returns the scale and bias of a merged group.
fn grid<D: Decode>(values: &[f32], scales: &[f32]) -> (f32, f32) {
    let (mut low, mut high) = (values[0], values[0]);
    for value in values {
        low = if *value < low { *value } else { low };
        high = if *value > high { *value } else { high };
    }
    let least = (high - low) / ((1 << D::BITS) - 1) as f32;
    let aligned = scales
        .iter()
        // The margin leaves space for the rounding of the zero point.
        .map(|scale| scale.abs() / (scale.abs() / least - 0.001).floor())
        .filter(|step| D::ALIGNED && step.is_finite() && *step > 0.0)
        .reduce(f32::min);
    let step = to_half(aligned.unwrap_or(least));
    if step > 0.0 && aligned.is_some() {
        (step, to_half((low / step).round() * step))
    } else {
        // A group of one value has the step 0.
        (step, to_half(low))
    }
}

fn to_half(number: f32) -> f32 {
    half::f16::from_f32(number).to_f32()
}

fn codes<D: Decode>(block: &[u8], codes: &mut [u8]) {
    let Decoded { values, scales } = D::decode(block);
    let groups = values.as_chunks::<32>().0.iter().zip(scales.as_chunks::<2>().0);
    for ((values, scales), codes) in groups.zip(codes.as_chunks_mut::<32>().0) {
        let (step, bias) = grid::<D>(values, scales);
        let inverse = if step > 0.0 { 1.0 / step } else { 0.0 };
        let top = ((1 << D::BITS) - 1) as f32;
        for (value, code) in values.iter().zip(codes) {
            // The conversion to integers rounds down and replaces NaN by 0.
            *code = ((value - bias) * inverse + 0.5).clamp(0.0, top) as u8;
        }
    }
}

fn grids<D: Decode>(block: &[u8]) -> [(f32, f32); 8] {
    let Decoded { values, scales } = D::decode(block);
    std::array::from_fn(|group| {
        grid::<D>(&values[group * 32..group * 32 + 32], &scales[group * 2..group * 2 + 2])
    })
}

/// Fills 256 elements. `code` returns the code of element `column` of row `row`, with eight rows of 32.
#[inline]
fn decoded(scales: [f32; 16], code: impl Fn(usize, usize) -> f32) -> Decoded {
    let mut values = [0.0; 256];
    for (row, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (column, value) in values.iter_mut().enumerate() {
            *value = scales[row * 2 + column / 16] * code(row, column);
        }
    }
    Decoded { values, scales }
}

/// Reads the 2 bits that Q2_K and Q3_K store in 64 bytes.
#[inline]
fn two_bits(bytes: &[u8; 64], row: usize, column: usize) -> u8 {
    bytes[row / 4 * 32 + column] >> (row % 4 * 2) & 3
}

impl Decode for Q6K {
    const BITS: usize = 8;
    const ALIGNED: bool = true;

    fn decode(block: &[u8]) -> Decoded {
        let (low, high) = (&block[..128], &block[128..192]);
        let scale = half_at(block, 208);
        decoded(std::array::from_fn(|group| scale * f32::from(block[192 + group] as i8)), |row, column| {
            let (half, quarter) = (row / 4, row % 4);
            let low = low[half * 64 + quarter % 2 * 32 + column] >> (quarter / 2 * 4) & 15;
            let high = high[half * 32 + column] >> (quarter * 2) & 3;
            f32::from(low | high << 4) - 32.0
        })
    }
}

impl Decode for Q3K {
    const BITS: usize = 5;
    const ALIGNED: bool = true;

    fn decode(block: &[u8]) -> Decoded {
        let high = &block[..32];
        let mut low = [0; 64];
        low.copy_from_slice(&block[32..96]);
        let codes = &block[96..108];
        let scale = half_at(block, 108);
        let scales = std::array::from_fn(|group| {
            let low = codes[group % 8] >> (group / 8 * 4) & 15;
            let high = codes[8 + group % 4] >> (group / 4 * 2) & 3;
            scale * (f32::from(low | high << 4) - 32.0)
        });
        decoded(scales, |row, column| {
            // A set bit adds 4.
            f32::from(two_bits(&low, row, column) | (high[column] >> row & 1) << 2) - 4.0
        })
    }
}

impl Decode for Q2K {
    const BITS: usize = 5;
    const ALIGNED: bool = false;

    fn decode(block: &[u8]) -> Decoded {
        let mut codes = [0; 64];
        codes.copy_from_slice(&block[16..80]);
        let (scale, minimum) = (half_at(block, 80), half_at(block, 82));
        let scales = std::array::from_fn(|group| scale * f32::from(block[group] & 15));
        let mut decoded = decoded(scales, |row, column| f32::from(two_bits(&codes, row, column)));
        for (values, byte) in decoded.values.as_chunks_mut::<16>().0.iter_mut().zip(block) {
            values.iter_mut().for_each(|value| *value -= minimum * f32::from(byte >> 4));
        }
        decoded
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
                write_halves(grids::<Self>(block).map(|(scale, _)| scale), out);
            }

            fn biases(block: &[u8], out: &mut [u8]) {
                write_halves(grids::<Self>(block).map(|(_, bias)| bias), out);
            }
        }
    )*};
}

blocks!(Q2K: 84, Q3K: 110, Q6K: 210);
