//! Converts blocks of GGUF into MLX's packing.
//!
//! MLX stores a quantized matrix as two or three tensors: codes, packed lowest bits first into a continuous bit stream per row; a scale per group of
//! neighbours; in affine mode also a bias per group. An element is `scale * code + bias`. GGUF stores blocks that contain codes and scales together, and
//! interleaves the codes of a block.
//!
//! Most types convert exactly: the f32 product and sum equal the numbers of the reference implementation bit for bit. Types with a scale per 16 elements
//! (Q6_K, Q3_K, Q2_K) do not, because MLX has no affine kernels for groups of 16; see [`merged`].

mod classic;
mod fp4;
mod merged;
mod super_block;
mod ternary;

use half::f16;

use crate::tensor_type::TensorType;

/// The packing of a quantized tensor in MLX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    /// The mode.
    pub mode: Mode,
    /// Bits of a code.
    pub bits: usize,
    /// Elements of a group.
    pub group_size: usize,
    /// The type of scales and biases.
    pub scales: ScaleType,
}

/// A mode of MLX's quantization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A scale and a bias per group.
    Affine,
    /// 4-bit floats and a power of two per 32.
    Mxfp4,
    /// 4-bit floats and an 8-bit float per 16.
    Nvfp4,
}

impl Mode {
    /// The name in config.json.
    pub fn name(self) -> &'static str {
        match self {
            Self::Affine => "affine",
            Self::Mxfp4 => "mxfp4",
            Self::Nvfp4 => "nvfp4",
        }
    }
}

/// The type of scales and biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleType {
    /// 16-bit floats.
    F16,
    /// 32-bit floats.
    F32,
    /// Bytes.
    U8,
}

impl ScaleType {
    fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
            Self::U8 => 1,
        }
    }
}

/// A tensor of a quantized matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The codes.
    Weight,
    /// The scales.
    Scales,
    /// The biases of affine mode.
    Biases,
}

impl Packing {
    const fn affine(bits: usize, group_size: usize, scales: ScaleType) -> Self {
        Self { mode: Mode::Affine, bits, group_size, scales }
    }

    /// The tensors of a matrix.
    pub fn parts(self) -> &'static [Part] {
        match self.mode {
            Mode::Affine => &[Part::Weight, Part::Scales, Part::Biases],
            Mode::Mxfp4 | Mode::Nvfp4 => &[Part::Weight, Part::Scales],
        }
    }

    /// Bytes that `elements` neighbours take in a tensor of the matrix.
    fn part_bytes(self, part: Part, elements: usize) -> usize {
        match part {
            Part::Weight => elements * self.bits / 8,
            Part::Scales | Part::Biases => elements / self.group_size * self.scales.bytes(),
        }
    }
}

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
    pub fn block_bytes(self, part: Part) -> usize {
        self.packing.part_bytes(part, self.block_elements)
    }

    /// Converts whole blocks. `out` takes [`block_bytes`](Self::block_bytes) a block.
    pub fn convert(self, part: Part, blocks: &[u8], out: &mut [u8]) {
        (self.convert)(part, blocks, out);
    }
}

/// A type of blocks.
trait Block {
    /// Elements of a block: at most 256, a multiple of 32.
    const ELEMENTS: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// The packing.
    const PACKING: Packing;

    /// Writes the codes of a block, one a byte, in the order of the elements.
    fn codes(block: &[u8], codes: &mut [u8]);

    /// Writes the scales of a block.
    fn scales(block: &[u8], out: &mut [u8]);

    /// Writes the biases of a block.
    fn biases(_block: &[u8], _out: &mut [u8]) {}
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

/// Spreads eight bits over the lowest bits of eight bytes.
#[inline]
fn spread(bits: u8) -> u64 {
    // Bit n remains in byte n; then the addition carries it into the highest bit of the byte.
    let apart = (u64::from(bits) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
    (apart + 0x7f7f_7f7f_7f7f_7f7f) >> 7 & 0x0101_0101_0101_0101
}

/// Reads the 16-bit float at byte `place`.
#[inline]
fn half_at(block: &[u8], place: usize) -> f32 {
    f16::from_le_bytes([block[place], block[place + 1]]).to_f32()
}

/// Writes the product of the 16-bit float at byte `place` and -2 to the power of `exponent`.
#[inline]
fn write_negated(block: &[u8], place: usize, exponent: u16, out: &mut [u8]) {
    let bits = u16::from_le_bytes([block[place], block[place + 1]]);
    let old = bits >> 10 & 31;
    // A change of the exponent suffices for a normal number with a normal product.
    let product = if old > 0 && old + exponent < 31 {
        (bits + (exponent << 10)) ^ 0x8000
    } else {
        f16::from_f32(-half_at(block, place) * f32::from(1u16 << exponent)).to_bits()
    };
    out[..2].copy_from_slice(&product.to_le_bytes());
}

/// Writes 16-bit floats.
fn write_halves(numbers: impl IntoIterator<Item = f32>, out: &mut [u8]) {
    for (number, out) in numbers.into_iter().zip(out.as_chunks_mut::<2>().0) {
        *out = f16::from_f32(number).to_le_bytes();
    }
}

/// Writes 32-bit floats.
fn write_floats(numbers: impl IntoIterator<Item = f32>, out: &mut [u8]) {
    for (number, out) in numbers.into_iter().zip(out.as_chunks_mut::<4>().0) {
        *out = number.to_le_bytes();
    }
}

/// Writes the low halves of bytes, then the high halves.
#[inline]
fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(bytes.len());
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_negated_and_multiplied() {
        for bits in 0..=u16::MAX {
            for exponent in [0, 3, 4, 7] {
                let mut out = [0; 2];
                write_negated(&bits.to_le_bytes(), 0, exponent, &mut out);
                let (ours, half) = (f16::from_le_bytes(out), f16::from_bits(bits));
                let expected = f16::from_f32(-half.to_f32() * f32::from(1u16 << exponent));
                assert!(ours.to_bits() == expected.to_bits() || ours.is_nan() && half.is_nan(), "{half}");
            }
        }
    }
}
