//! Checkpoints of compressed-tensors: integers, NVFP4 and MXFP4. Packed integers are MLX's words.

use std::sync::Arc;

use safetensors::Dtype;

use super::affine::{Affine, IN_ORDER, Layout, WORDS, Zeros};
use super::computed::Rows;
use super::nvfp4;
use super::operand::Operand;
use super::rewriter::Rewriter;
use super::transposed::expect_no_act_order;
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
    let fits = |format: &&Integers| {
        format.group.map_or(groups == 1, |group| groups * group * format.bits == width * 32)
    };
    let mut fitting: Vec<&Integers> = formats.iter().filter(fits).collect();
    if fitting.len() > 1
        && let Some(inputs) = shape.as_deref().map(inputs_of).transpose()?
    {
        fitting.retain(|format| inputs * format.bits == width * 32);
    }
    let [format] = fitting[..] else {
        return Err(words.error(format_args!(
            "has {width} words and {groups} scales in each row; no group in quantization_config has this shape: {formats:?}"
        )));
    };
    let (bits, inputs) = (format.bits, width * 32 / format.bits);
    if let Some(indices) = rewriter.find(&format!("{module}.weight_g_idx")) {
        expect_no_act_order(&indices, inputs, inputs / groups)?;
    }
    let zeros = match rewriter.find(&format!("{module}.weight_zero_point")) {
        None => Zeros::Same((1_u32 << (bits - 1)) as f32),
        Some(words) => {
            if 32 % bits != 0 {
                return Err(
                    words.error(format_args!("has zero points of {bits} bits; supported are 2, 4 and 8"))
                );
            }
            words.expect_type(&WORDS)?;
            words.expect_shape(&[(outputs * bits).div_ceil(32), groups])?;
            Zeros::Packed { words, bits, order: IN_ORDER, offset: 0 }
        }
    };
    rewriter.put_as(&module, "weight", &words, Dtype::U32, vec![outputs, width]);
    Affine { scales, zeros, layout: Layout::OutputsFirst, outputs, groups }
        .put(rewriter, module, bits, inputs)
}

/// Reads the number of columns from a tensor with a shape.
fn inputs_of(shape: &Operand) -> Result<usize> {
    let bytes = shape.bytes(0, shape.entry.length.min(16))?;
    let second = match (shape.dtype(), &bytes[..]) {
        (Dtype::I64, [_, _, _, _, _, _, _, _, second @ ..]) => second.try_into().map(i64::from_le_bytes).ok(),
        (Dtype::I32, [_, _, _, _, second @ ..]) => {
            second.try_into().map(i32::from_le_bytes).ok().map(i64::from)
        }
        _ => None,
    };
    second
        .and_then(|inputs| usize::try_from(inputs).ok())
        .ok_or_else(|| shape.error("holds no shape of a matrix"))
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
