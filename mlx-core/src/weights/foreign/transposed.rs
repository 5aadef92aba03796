//! Checkpoints of AWQ and GPTQ. Their matrices are transposed while they are read, a band of outputs at a time.

use std::sync::Arc;

use safetensors::Dtype;

use super::affine::{Affine, IN_ORDER, Layout, WORDS, Zeros};
use super::computed::Rows;
use super::operand::Operand;
use super::rewriter::Rewriter;
use crate::error::Result;
use crate::quantization::{Foreign, Integers, Tool};

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
    rewriter.drop_zeros(&module, "bias")?;
    if let Some(indices) = rewriter.find(&format!("{module}.g_idx")) {
        expect_no_act_order(&indices, inputs, format.group.unwrap_or(inputs))?;
    }
    let rows = GptqRows { codes: Arc::clone(codes), words, outputs };
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

/// Rejects matrices whose inputs are not in the order of their groups. `indices` has the group of each input.
pub(super) fn expect_no_act_order(indices: &Operand, inputs: usize, group: usize) -> Result<()> {
    indices.expect_type(&[Dtype::I32])?;
    indices.expect_shape(&[inputs])?;
    let found = indices.words(0, inputs)?;
    // compressed-tensors writes -1 if the inputs are in order.
    let is_unused = found.iter().all(|index| *index == u32::MAX);
    if is_unused || found.iter().enumerate().all(|(input, index)| *index as usize == input / group.max(1)) {
        return Ok(());
    }
    Err(indices
        .error("reorders inputs (desc_act or actorder), which is not supported; use a version without it"))
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
        let count = bytes.len() / width;
        let (start, end) = (first / 8, (first + count).div_ceil(8));
        let stripe = (end - start) * 4;
        // Eight inputs are a word of each output.
        let mut stripes = vec![0; 8 * stripe];
        for word in 0..width / 4 {
            for (input, stripe) in stripes.chunks_exact_mut(stripe).enumerate() {
                let place = (word * 8 + input) * self.columns + start;
                self.codes.source.read_at(place * 4, stripe)?;
            }
            for (row, to) in bytes.chunks_exact_mut(width).enumerate() {
                let (column, shift) = ((first + row) / 8 - start, AWQ_ORDER[(first + row) % 8] * 4);
                let (place, low) = (column * 4 + shift / 8, shift % 8);
                let code = |input: usize| stripes[input * stripe + place] >> low & 15;
                for pair in 0..4 {
                    to[word * 4 + pair] = code(2 * pair) | code(2 * pair + 1) << 4;
                }
            }
        }
        Ok(())
    }
}

/// GPTQ's matrix with outputs as rows.
#[derive(Debug)]
struct GptqRows {
    codes: Arc<Operand>,
    /// Words of an output.
    words: usize,
    outputs: usize,
}

impl Rows for GptqRows {
    fn fill(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        let width = self.words * 4;
        let count = bytes.len() / width;
        let mut column = vec![0; count * 4];
        for word in 0..self.words {
            self.codes.source.read_at((word * self.outputs + first) * 4, &mut column)?;
            for (to, from) in bytes.chunks_exact_mut(width).zip(column.as_chunks::<4>().0) {
                to[word * 4..word * 4 + 4].copy_from_slice(from);
            }
        }
        Ok(())
    }
}
