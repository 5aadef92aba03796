//! A type of blocks, and the reading of numbers from blocks.

use half::f16;

use super::kind::Packing;

/// A type of blocks.
pub(super) trait Block {
    /// Elements of a block: at most 256, a multiple of 32.
    const ELEMENTS: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// The packing.
    const PACKING: Packing;

    /// Writes the codes of a block, one a byte, in the order of the elements.
    fn codes(block: &[u8], codes: &mut [u8]);

    /// Writes the scales of a block. Most blocks begin with their only scale, a 16-bit float.
    fn scales(block: &[u8], out: &mut [u8]) {
        out.copy_from_slice(&block[..2]);
    }

    /// Writes the biases of a block.
    fn biases(_block: &[u8], _out: &mut [u8]) {}
}

/// Spreads eight bits over the lowest bits of eight bytes.
#[inline]
pub(super) fn spread(bits: u8) -> u64 {
    // Bit n remains in byte n; then the addition carries it into the highest bit of the byte.
    let apart = (u64::from(bits) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
    (apart + 0x7f7f_7f7f_7f7f_7f7f) >> 7 & 0x0101_0101_0101_0101
}

/// Reads the 16-bit float at byte `place`.
#[inline]
pub(super) fn half_at(block: &[u8], place: usize) -> f32 {
    f16::from_le_bytes([block[place], block[place + 1]]).to_f32()
}

/// Writes the product of the 16-bit float at byte `place` and -2 to the power of `exponent`.
#[inline]
pub(super) fn write_negated(block: &[u8], place: usize, exponent: u16, out: &mut [u8]) {
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
pub(super) fn write_halves(numbers: impl IntoIterator<Item = f32>, out: &mut [u8]) {
    for (number, out) in numbers.into_iter().zip(out.as_chunks_mut::<2>().0) {
        *out = f16::from_f32(number).to_le_bytes();
    }
}

/// Writes 32-bit floats.
pub(super) fn write_floats(numbers: impl IntoIterator<Item = f32>, out: &mut [u8]) {
    for (number, out) in numbers.into_iter().zip(out.as_chunks_mut::<4>().0) {
        *out = number.to_le_bytes();
    }
}

/// Writes the low halves of bytes, then the high halves.
#[inline]
pub(super) fn nibbles(bytes: &[u8], codes: &mut [u8]) {
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
