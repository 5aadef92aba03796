//! QuantizedMatrix numbers to floats, on the host: on a CPU, MLX's own way takes many times as long. Invariant: no array is touched.

use crate::quantization::{Mode, QuantScheme};

/// Unpacks the groups of one kind of packing.
pub(crate) struct Unpacker {
    packing: QuantScheme,
    /// What each string of bits means before it is scaled.
    table: Vec<f32>,
}

impl Unpacker {
    pub(crate) fn new(packing: QuantScheme) -> Self {
        let codes = 0..=u8::MAX >> (8 - packing.bits);
        let meaning: fn(u8) -> f32 = match packing.mode {
            Mode::Affine => |code| f32::from(code),
            Mode::Mxfp4 | Mode::Nvfp4 => e2m1,
            Mode::Mxfp8 => e4m3,
        };
        Self { packing, table: codes.map(meaning).collect() }
    }

    /// The numbers in `words`, whole groups of them, each with its scale and, in affine mode, bias.
    pub(crate) fn unpack(&self, words: &[u32], scales: &[f32], biases: Option<&[f32]>) -> Vec<f32> {
        let QuantScheme { bits, group_size: group, .. } = self.packing;
        let mask = (1 << bits) - 1;
        let mut numbers = Vec::with_capacity(scales.len() * group);
        // A group has whole words, and the lowest bits come first.
        for (index, (words, scale)) in words.chunks_exact(group * bits / 32).zip(scales).enumerate() {
            let bias = biases.map_or(0.0, |biases| biases[index]);
            let (mut held, mut count) = (0_u64, 0);
            let mut words = words.iter();
            numbers.extend((0..group).map(|_| {
                if count < bits {
                    held |= words.next().map_or(0, |&word| u64::from(word) << count);
                    count += 32;
                }
                let number = self.table[(held & mask) as usize];
                held >>= bits;
                count -= bits;
                number * scale + bias
            }));
        }
        numbers
    }

    /// The scale that a byte stands for, in the modes whose scales are bytes.
    pub(crate) fn scale(&self, code: u8) -> f32 {
        match self.packing.mode {
            Mode::Nvfp4 => e4m3(code),
            // A power of two.
            _ => 2_f32.powi(i32::from(code) - 127),
        }
    }
}

/// A float of 4 bits: sign, 2 bits of exponent, 1 of fraction.
fn e2m1(code: u8) -> f32 {
    let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { size } else { -size }
}

/// A float of 8 bits: sign, 4 bits of exponent, 3 of fraction; there is no infinity (Micikevicius et al., 2022, arXiv:2209.05433).
fn e4m3(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
    let size = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction * 2_f32.powi(-6),
        _ => (1.0 + fraction) * 2_f32.powi(exponent - 7),
    };
    if code & 128 == 0 { size } else { -size }
}
