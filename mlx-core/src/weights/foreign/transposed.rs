//! Checkpoints of AWQ and GPTQ. Their matrices are transposed while they are read, a band of outputs at a time.

use std::sync::Arc;

use safetensors::Dtype;

use super::affine::{Affine, IN_ORDER, Layout, WORDS, Zeros};
use super::computed::Rows;
use super::operand::Operand;
use super::rewriter::Rewriter;
use crate::error::Result;
use crate::quantization::{Foreign, Integers, Tool};

/// The number of words of an output that are transposed at a time: a line of a cache.
const LINE: usize = 16;

/// The order of AWQ's numbers in a word.
const AWQ_ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Replaces the tensors of all modules: `qweight`, `qzeros` and `scales`.
pub(super) fn rewrite(rewriter: &mut Rewriter, foreign: &Foreign) -> Result<()> {
    let formats = foreign.integers.iter().copied();
    for format in formats {
        for module in rewriter.modules("qweight", &WORDS) {
            let codes = rewriter.take(&module, "qweight")?;
            match foreign.tool {
                Tool::Gptq { zero_offset } => gptq(rewriter, module, &codes, format, zero_offset)?,
                _ => awq(rewriter, module, &codes, format)?,
            }
        }
    }
    Ok(())
}

/// Replaces `qweight`, `[inputs, outputs / 8]`, with neighboring outputs in a word.
fn awq(rewriter: &mut Rewriter, module: String, codes: &Arc<Operand>, format: Integers) -> Result<()> {
    let [inputs, columns] = codes.matrix()?;
    let outputs = columns * 8;
    expect_words(codes, inputs, format.bits)?;
    let rows = AwqRows { codes: Arc::clone(codes), inputs, columns };
    let form = (Dtype::U32, vec![outputs, inputs / 8]);
    rewriter.put(&format!("{module}.weight"), form, rows, codes, codes.entry.file_bytes);
    affine(rewriter, module, [outputs, inputs], format, AWQ_ORDER, 0)
}

/// Replaces `qweight`, `[inputs / 8, outputs]`, with neighboring inputs in a word.
fn gptq(
    rewriter: &mut Rewriter,
    module: String,
    codes: &Arc<Operand>,
    format: Integers,
    zero_offset: u8,
) -> Result<()> {
    let [words, outputs] = codes.matrix()?;
    let inputs = words * 32 / format.bits;
    // AutoGPTQ writes biases that the model does not have.
    rewriter.drop_zero_bias(&module)?;
    let indices = rewriter.find(&format!("{module}.g_idx"));
    let group = format.group.unwrap_or(inputs).max(1);
    let order = indices.as_deref().map(|indices| order_of(indices, inputs, group)).transpose()?.flatten();
    let order = order.map(Arc::new);
    if let Some(order) = &order {
        let form = (Dtype::U32, vec![inputs]);
        rewriter.put(&format!("{module}.input_order"), form, Order(Arc::clone(order)), codes, 0);
    }
    let rows = GptqRows { codes: Arc::clone(codes), words, outputs, bits: format.bits, order };
    rewriter.put(
        &format!("{module}.weight"),
        (Dtype::U32, vec![outputs, words]),
        rows,
        codes,
        codes.entry.file_bytes,
    );
    affine(rewriter, module, [outputs, inputs], format, IN_ORDER, zero_offset)
}

/// Replaces the scales, `[groups, outputs]`, and the packed zero points, `[groups, words]`.
fn affine(
    rewriter: &mut Rewriter,
    module: String,
    [outputs, inputs]: [usize; 2],
    format: Integers,
    order: [usize; 8],
    offset: u8,
) -> Result<()> {
    let Integers { bits, group } = format;
    let (scales, zeros) = (rewriter.take(&module, "scales")?, rewriter.take(&module, "qzeros")?);
    let groups = inputs / group.unwrap_or(inputs);
    scales.expect_shape(&[groups, outputs])?;
    zeros.expect_type(&WORDS)?;
    zeros.expect_shape(&[groups, (outputs * bits).div_ceil(32)])?;
    let zeros = Zeros::Packed { words: zeros, bits, order, offset };
    Affine { scales, zeros, layout: Layout::GroupsFirst, outputs, groups }.put(rewriter, module, bits, inputs)
}

fn expect_words(codes: &Operand, inputs: usize, bits: usize) -> Result<()> {
    if (inputs * bits).is_multiple_of(32) {
        return Ok(());
    }
    Err(codes.error(format_args!("has rows of {inputs} numbers, which are no whole words")))
}

/// Returns the order of inputs in which those of a group follow each other; `None` if they do. `indices` has the group of each input.
pub(super) fn order_of(indices: &Operand, inputs: usize, group: usize) -> Result<Option<Vec<u32>>> {
    indices.expect_type(&[Dtype::I32])?;
    indices.expect_shape(&[inputs])?;
    let found = indices.words(0, inputs)?;
    let is_ordered = |(place, index): (usize, u32)| index as usize == place / group;
    // compressed-tensors writes -1 if the inputs are in order.
    if found.iter().all(|index| *index == u32::MAX) || found.iter().copied().enumerate().all(is_ordered) {
        return Ok(None);
    }
    let mut order: Vec<u32> = (0..inputs as u32).collect();
    order.sort_by_key(|input| found[*input as usize]);
    if order.iter().map(|input| found[*input as usize]).enumerate().all(is_ordered) {
        return Ok(Some(order));
    }
    Err(indices.error(format_args!("must have each of {} groups {group} times", inputs / group)))
}

/// An order of inputs.
#[derive(Debug)]
struct Order(Arc<Vec<u32>>);

impl Rows for Order {
    fn fill(&self, _first: usize, bytes: &mut [u8]) -> Result<()> {
        bytes
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(self.0.iter())
            .for_each(|(to, input)| *to = input.to_le_bytes());
        Ok(())
    }
}

/// AWQ's matrix with outputs as rows.
#[derive(Debug)]
struct AwqRows {
    codes: Arc<Operand>,
    inputs: usize,
    /// Words of an input's row in the file.
    columns: usize,
}

impl Rows for AwqRows {
    fn fill(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        let width = self.inputs / 2;
        let outputs = first..first + bytes.len() / width;
        let (start, end) = (outputs.start / 8, outputs.end.div_ceil(8));
        let stripe = end - start;
        let mut codes = vec![0; 8 * LINE * stripe * 4];
        for word in (0..width / 4).step_by(LINE) {
            let words = LINE.min(width / 4 - word);
            // Eight inputs are a word of each output.
            for (input, codes) in codes.chunks_exact_mut(stripe * 4).take(words * 8).enumerate() {
                let place = (word * 8 + input) * self.columns + start;
                self.codes.source.read_at(place * 4, codes)?;
            }
            let codes = codes.as_chunks::<4>().0;
            for column in 0..stripe {
                let mut by_output = [[0; 8]; LINE];
                for (place, line) in by_output.iter_mut().enumerate().take(words) {
                    *line = transposed(std::array::from_fn(|input| {
                        u32::from_le_bytes(codes[(place * 8 + input) * stripe + column])
                    }));
                }
                for (number, place) in AWQ_ORDER.into_iter().enumerate() {
                    let output = (start + column) * 8 + number;
                    if outputs.contains(&output) {
                        let to = (output - first) * width + word * 4;
                        let to = bytes[to..to + words * 4].as_chunks_mut().0;
                        for (to, line) in to.iter_mut().zip(&by_output) {
                            *to = line[place].to_le_bytes();
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Transposes a square of eight words with eight codes of 4 bits.
fn transposed(mut words: [u32; 8]) -> [u32; 8] {
    for (step, mask) in [(4, 0x0000_ffff), (2, 0x00ff_00ff), (1, 0x0f0f_0f0f)] {
        for one in (0..8).filter(|one| one & step == 0) {
            let other = one + step;
            let swapped = (words[one] >> (4 * step) ^ words[other]) & mask;
            words[one] ^= swapped << (4 * step);
            words[other] ^= swapped;
        }
    }
    words
}

/// GPTQ's matrix with outputs as rows.
#[derive(Debug)]
struct GptqRows {
    codes: Arc<Operand>,
    /// Words of an output.
    words: usize,
    outputs: usize,
    bits: usize,
    /// The order of inputs, if it differs from the files.
    order: Option<Arc<Vec<u32>>>,
}

impl GptqRows {
    /// Puts the codes of a row in order.
    fn reorder(&self, row: &mut [u8], order: &[u32]) {
        let (bits, words) = (self.bits, row.as_chunks_mut::<4>().0);
        let stored: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let code = |input: u32| {
            let place = input as usize * bits;
            stored[place / 32] >> (place % 32) & (u32::MAX >> (32 - bits))
        };
        for (word, inputs) in words.iter_mut().zip(order.chunks(32 / bits)) {
            let codes = inputs.iter().enumerate().map(|(place, input)| code(*input) << (place * bits));
            *word = codes.fold(0, |word, code| word | code).to_le_bytes();
        }
    }
}

impl Rows for GptqRows {
    fn fill(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        let width = self.words * 4;
        let count = bytes.len() / width;
        let mut columns = vec![0; LINE * count * 4];
        for word in (0..self.words).step_by(LINE) {
            let words = LINE.min(self.words - word);
            for (place, column) in columns.chunks_exact_mut(count * 4).take(words).enumerate() {
                self.codes.source.read_at(((word + place) * self.outputs + first) * 4, column)?;
            }
            let columns = columns.as_chunks::<4>().0;
            for (row, to) in bytes.chunks_exact_mut(width).enumerate() {
                let to = to[word * 4..(word + words) * 4].as_chunks_mut().0;
                for (place, to) in to.iter_mut().enumerate() {
                    *to = columns[place * count + row];
                }
            }
        }
        if let Some(order) = &self.order {
            for row in bytes.chunks_exact_mut(width) {
                self.reorder(row, order);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::transposed;

    #[test]
    fn a_square_of_codes_is_transposed() {
        let words: [u32; 8] = std::array::from_fn(|row| 0x9e37_79b9_u32.wrapping_mul(row as u32 + 3));
        let other = transposed(words);
        for (row, column) in (0..64).map(|place| (place / 8, place % 8)) {
            assert_eq!(other[row] >> (4 * column) & 15, words[column] >> (4 * row) & 15);
        }
    }
}
