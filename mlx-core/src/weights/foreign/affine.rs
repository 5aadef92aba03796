//! The scales and biases of integer codes: `scale * (code - zero)` becomes `scale * code + bias` with `bias = -zero * scale`.

use std::sync::Arc;

use safetensors::Dtype;

use super::computed::Rows;
use super::operand::{FLOATS, Operand, encode};
use super::rewriter::Rewriter;
use crate::error::Result;
use crate::quantization::{Mode, QuantScheme};

/// The group sizes of MLX, the largest first.
const GROUPS: [usize; 3] = [128, 64, 32];

/// The order of numbers in a packed word: column `c` is number `order[c % 8]` from the lowest bits.
pub(super) const IN_ORDER: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// The layout of a matrix of scales or zero points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// `[outputs, groups]`. Zero points are packed along the outputs.
    OutputsFirst,
    /// `[groups, outputs]`. Zero points are packed along the outputs.
    GroupsFirst,
}

/// The zero points of the groups.
#[derive(Debug, Clone)]
pub(super) enum Zeros {
    /// One number for all groups.
    Same(f32),
    /// Packed codes. The order of the codes in a word, and a number that is added to each code.
    Packed { words: Arc<Operand>, bits: usize, order: [usize; 8], offset: u8 },
}

/// The most bits of codes whose biases are rounded to the type of the scales. With more bits, the rounding takes up to a whole step of the
/// codes, so scales and biases become f32.
const ROUNDED_BITS: usize = 4;

/// The scales and zero points of a matrix.
#[derive(Debug, Clone)]
pub(super) struct Affine {
    pub(super) scales: Arc<Operand>,
    pub(super) zeros: Zeros,
    pub(super) layout: Layout,
    pub(super) outputs: usize,
    /// The number of groups in a row of the files.
    pub(super) groups: usize,
}

impl Affine {
    /// Adds the scales and biases of `module` with `inputs` columns, and sets its scheme.
    pub(super) fn put(
        self,
        rewriter: &mut Rewriter,
        module: String,
        bits: usize,
        inputs: usize,
    ) -> Result<()> {
        self.scales.expect_type(&FLOATS)?;
        let size = inputs / self.groups.max(1);
        let whole = self.groups > 0 && inputs.is_multiple_of(self.groups);
        let Some(group) = GROUPS.into_iter().find(|group| whole && size.is_multiple_of(*group)) else {
            return Err(self.scales.error(format_args!(
                "has groups of {inputs} / {} numbers; MLX supports groups of 32, 64 and 128 and multiples of these",
                self.groups
            )));
        };
        let repeat = size / group;
        let is_wide = bits > ROUNDED_BITS && matches!(self.zeros, Zeros::Packed { .. });
        let dtype = if is_wide { Dtype::F32 } else { self.scales.dtype() };
        let form = || (dtype, vec![self.outputs, self.groups * repeat]);
        if self.layout == Layout::OutputsFirst && repeat == 1 && dtype == self.scales.dtype() {
            let (dtype, shape) = form();
            rewriter.put_as(&module, "scales", &self.scales, dtype, shape);
        } else {
            let scales = GroupFloats { affine: self.clone(), repeat, dtype, are_biases: false };
            rewriter.put(
                &format!("{module}.scales"),
                form(),
                scales,
                &self.scales,
                self.scales.entry.file_bytes,
            );
        }
        let zeros = match &self.zeros {
            Zeros::Same(_) => 0,
            Zeros::Packed { words, .. } => words.entry.file_bytes,
        };
        let biases = GroupFloats { affine: self.clone(), repeat, dtype, are_biases: true };
        rewriter.put(&format!("{module}.biases"), form(), biases, &self.scales, zeros);
        if is_wide {
            rewriter.keep_wide(&module, ["scales", "biases"]);
        }
        rewriter.set_scheme(module, QuantScheme { mode: Mode::Affine, bits, group_size: group });
        Ok(())
    }

    /// Returns the scales of `count` rows from row `first`, row by row.
    fn scales(&self, first: usize, count: usize) -> Result<Vec<f32>> {
        match self.layout {
            Layout::OutputsFirst => self.scales.floats(first * self.groups, count * self.groups),
            Layout::GroupsFirst => {
                let column = |group: usize| self.scales.floats(group * self.outputs + first, count);
                let columns = (0..self.groups).map(column).collect::<Result<Vec<_>>>()?;
                Ok((0..count).flat_map(|row| columns.iter().map(move |column| column[row])).collect())
            }
        }
    }

    /// Returns the zero points of `count` rows from row `first`, row by row.
    fn zeros(&self, first: usize, count: usize) -> Result<Vec<f32>> {
        let (words, bits, order, offset) = match &self.zeros {
            Zeros::Same(zero) => return Ok(vec![*zero; count * self.groups]),
            Zeros::Packed { words, bits, order, offset } => (words, *bits, order, *offset),
        };
        let per_word = 32 / bits;
        let (start, end) = (first / per_word, (first + count).div_ceil(per_word));
        let (tall, groups) = (self.outputs.div_ceil(per_word), self.groups);
        let found = match self.layout {
            Layout::OutputsFirst => words.words(start * groups, (end - start) * groups)?,
            Layout::GroupsFirst => {
                let stripe = |group: usize| words.words(group * tall + start, end - start);
                (0..groups).map(stripe).collect::<Result<Vec<_>>>()?.concat()
            }
        };
        let zero = |row: usize, group: usize| {
            let word = match self.layout {
                Layout::OutputsFirst => found[(row / per_word - start) * groups + group],
                Layout::GroupsFirst => found[group * (end - start) + row / per_word - start],
            };
            let place = if per_word == order.len() { order[row % per_word] } else { row % per_word };
            code(word, place, bits, offset) as f32
        };
        Ok((first..first + count).flat_map(|row| (0..groups).map(move |group| zero(row, group))).collect())
    }
}

/// Returns a zero point of a word of stored ones, which are `offset` too small. GPTQModel subtracts from all codes of a word at once, so a zero
/// point of 0 borrows from the next one.
fn code(word: u32, place: usize, bits: usize, offset: u8) -> u32 {
    let ones: u32 = (0..32 / bits).map(|place| 1 << (place * bits)).sum();
    let word = word.wrapping_add(u32::from(offset).wrapping_mul(ones));
    (word >> (place * bits)) & (u32::MAX >> (32 - bits))
}

/// Rows of scales or biases, each of them repeated.
#[derive(Debug)]
struct GroupFloats {
    affine: Affine,
    repeat: usize,
    dtype: Dtype,
    are_biases: bool,
}

impl Rows for GroupFloats {
    fn fill(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        let width = self.affine.groups * self.repeat * self.dtype.bitsize() / 8;
        let count = bytes.len() / width;
        let mut numbers = self.affine.scales(first, count)?;
        if self.are_biases {
            let zeros = self.affine.zeros(first, count)?;
            numbers.iter_mut().zip(zeros).for_each(|(number, zero)| *number *= -zero);
        }
        let repeated = numbers.into_iter().flat_map(|number| std::iter::repeat_n(number, self.repeat));
        encode(repeated, self.dtype, bytes);
        Ok(())
    }
}

/// The type of packed words in the files.
pub(super) const WORDS: [Dtype; 2] = [Dtype::I32, Dtype::U32];

#[cfg(test)]
mod tests {
    use super::code;

    #[test]
    fn zero_points_of_0_borrow_from_the_next() {
        for (bits, ones) in [(2, 0x5555_5555), (4, 0x1111_1111), (8, 0x0101_0101_u32)] {
            let zeros = [1, 0, 2, 3, 0, 0, 1, 0, 3, 0, 0, 0, 2, 1, 0, 0];
            let zeros = &zeros[..32 / bits];
            let word = zeros.iter().rev().fold(0_u32, |word, zero| word.unbounded_shl(bits as u32) | zero);
            let read = |word, offset| (0..zeros.len()).map(move |place| code(word, place, bits, offset));
            assert!(read(word.wrapping_sub(ones), 1).eq(zeros.iter().copied()), "{bits} bits");
            assert!(read(word, 0).eq(zeros.iter().copied()), "{bits} bits");
        }
    }
}
