//! Checkpoints of compressed-tensors: integers, NVFP4 and MXFP4. Packed integers are MLX's words.

use std::sync::Arc;

use safetensors::Dtype;

use super::affine::{Affine, IN_ORDER, Layout, WORDS, Zeros};
use super::computed::Rows;
use super::nvfp4;
use super::operand::Operand;
use super::rewriter::Rewriter;
use super::transposed::order_of;
use crate::error::Result;
use crate::quantization::{Foreign, Integers};

/// Replaces the tensors of modules with integer or 4-bit float codes.
pub(super) fn rewrite(rewriter: &mut Rewriter, foreign: &Foreign) -> Result<()> {
    for module in rewriter.modules("weight_packed", &WORDS) {
        packed(rewriter, module, &foreign.integers)?;
    }
    for module in rewriter.modules("weight_packed", &[Dtype::U8]) {
        nvfp4::packed(rewriter, module)?;
    }
    for module in rewriter.modules("weight", &[Dtype::I8]) {
        bytes(rewriter, module)?;
    }
    Ok(())
}

/// Replaces packed integers: `weight_packed`, `[outputs, words]`, `weight_scale`, `[outputs, groups]`, and possibly `weight_zero_point`,
/// packed along the outputs.
fn packed(rewriter: &mut Rewriter, module: String, formats: &[Integers]) -> Result<()> {
    let words = rewriter.take(&module, "weight_packed")?;
    let scales = rewriter.take(&module, "weight_scale")?;
    let shape = rewriter.find(&format!("{module}.weight_shape"));
    let ([outputs, width], [rows, groups]) = (words.matrix()?, scales.matrix()?);
    if rows != outputs {
        return Err(scales.error(format_args!("has {rows} rows; the module has {outputs}")));
    }
    let inputs = shape.as_deref().and_then(inputs_of);
    let fitting =
        formats.iter().filter_map(|format| Some((format.bits, fit(format, width, groups, inputs)?)));
    let mut fitting: Vec<_> = fitting.collect();
    if fitting.len() > 1 {
        fitting.retain(|(_, (found, _))| Some(*found) == inputs);
    }
    let [(bits, (inputs, packing))] = fitting[..] else {
        return Err(words.error(format_args!(
            "has {width} words and {groups} scales in each row; no group in quantization_config has this shape: {formats:?}"
        )));
    };
    if let Some(indices) = rewriter.find(&format!("{module}.weight_g_idx"))
        && order_of(&indices, inputs, (inputs / groups.max(1)).max(1))?.is_some()
    {
        return Err(
            indices.error("reorders inputs (actorder), which is not supported; use a version without it")
        );
    }
    let zeros = match rewriter.find(&format!("{module}.weight_zero_point")) {
        None => Zeros::Same((1_u32 << (bits - 1)) as f32),
        Some(words) => {
            if packing == Packing::Dense && 32 % bits != 0 {
                return Err(
                    words.error(format_args!("has zero points of {bits} bits; supported are 2, 4 and 8"))
                );
            }
            words.expect_type(&WORDS)?;
            words.expect_shape(&[outputs.div_ceil(32 / bits), groups])?;
            Zeros::Packed { words, bits, order: IN_ORDER, offset: 0 }
        }
    };
    match packing {
        Packing::Dense => rewriter.put_as(&module, "weight", &words, Dtype::U32, vec![outputs, width]),
        Packing::Padded => {
            let rows = PaddedRows { words: Arc::clone(&words), width, bits, inputs };
            let form = (Dtype::U32, vec![outputs, inputs * bits / 32]);
            rewriter.put(&format!("{module}.weight"), form, rows, &words, words.entry.file_bytes);
        }
    }
    Affine { scales, zeros, layout: Layout::OutputsFirst, outputs, groups }
        .put(rewriter, module, bits, inputs)
}

/// The packing of codes in the words of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    /// MLX's. A code of 3, 5 or 6 bits may be in two words.
    Dense,
    /// That of older versions: codes of 3, 5 or 6 bits leave the highest bits of each word unused.
    Padded,
}

/// Returns the number of inputs and the packing, if rows of `width` words with `groups` scales can have this format. `inputs` is the number in
/// the files, if they have it.
fn fit(format: &Integers, width: usize, groups: usize, inputs: Option<usize>) -> Option<(usize, Packing)> {
    let bits = format.bits;
    let inputs = match format.group {
        Some(group) => groups.checked_mul(group)?,
        None if groups == 1 => inputs.unwrap_or(width * 32 / bits),
        None => return None,
    };
    match width {
        _ if Some(width * 32) == inputs.checked_mul(bits) => Some((inputs, Packing::Dense)),
        _ if width == inputs.div_ceil(32 / bits) => Some((inputs, Packing::Padded)),
        _ => None,
    }
}

/// Reads the number of columns from a tensor with a shape; `None` if it has none.
fn inputs_of(shape: &Operand) -> Option<usize> {
    let bytes = shape.bytes(0, shape.entry.length.min(16)).ok()?;
    let second = match (shape.dtype(), &bytes[..]) {
        (Dtype::I64, [_, _, _, _, _, _, _, _, second @ ..]) => second.try_into().map(i64::from_le_bytes).ok(),
        (Dtype::I32, [_, _, _, _, second @ ..]) => {
            second.try_into().map(i32::from_le_bytes).ok().map(i64::from)
        }
        _ => None,
    };
    second.and_then(|inputs| usize::try_from(inputs).ok())
}

/// Replaces signed bytes: `weight`, `[outputs, inputs]`, and `weight_scale`, one per row or group.
fn bytes(rewriter: &mut Rewriter, module: String) -> Result<()> {
    let codes = rewriter.take(&module, "weight")?;
    let scales = rewriter.take(&module, "weight_scale")?;
    let ([outputs, inputs], [rows, groups]) = (codes.matrix()?, scales.matrix()?);
    if rows != outputs || !inputs.is_multiple_of(32) {
        return Err(scales.error(format_args!(
            "has shape {:?} for a matrix {:?}; supported are one scale per row or group, and rows that are a multiple of 32",
            scales.shape(),
            codes.shape()
        )));
    }
    if let Some(zeros) = rewriter.find(&format!("{module}.weight_zero_point")) {
        return Err(zeros.error("is not supported; 8-bit weights must be symmetric"));
    }
    let flipped = Flipped { codes: Arc::clone(&codes), inputs };
    let form = (Dtype::U32, vec![outputs, inputs / 4]);
    rewriter.put(&format!("{module}.weight"), form, flipped, &codes, codes.entry.file_bytes);
    let zeros = Zeros::Same(128.0);
    Affine { scales, zeros, layout: Layout::OutputsFirst, outputs, groups }.put(rewriter, module, 8, inputs)
}

/// Rows of padded words in MLX's packing.
#[derive(Debug)]
struct PaddedRows {
    words: Arc<Operand>,
    /// Words of a row in the file.
    width: usize,
    bits: usize,
    inputs: usize,
}

impl Rows for PaddedRows {
    fn fill(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        let (bits, row) = (self.bits, self.inputs * self.bits / 8);
        let words = self.words.words(first * self.width, bytes.len() / row * self.width)?;
        for (words, to) in words.chunks_exact(self.width).zip(bytes.chunks_exact_mut(row)) {
            let codes = words.iter().flat_map(|word| (0..32 / bits).map(move |place| word >> (place * bits)));
            let (mut held, mut count, mut to) = (0_u64, 0, to.iter_mut());
            for code in codes.take(self.inputs) {
                held |= u64::from(code & (u32::MAX >> (32 - bits))) << count;
                count += bits;
                while count >= 8 {
                    to.next().into_iter().for_each(|to| *to = held as u8);
                    (held, count) = (held >> 8, count - 8);
                }
            }
        }
        Ok(())
    }
}

/// Rows of signed bytes as unsigned ones, 128 larger.
#[derive(Debug)]
struct Flipped {
    codes: Arc<Operand>,
    inputs: usize,
}

impl Rows for Flipped {
    fn fill(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        self.codes.source.read_at(first * self.inputs, bytes)?;
        for code in bytes {
            *code ^= 0x80;
        }
        Ok(())
    }
}
