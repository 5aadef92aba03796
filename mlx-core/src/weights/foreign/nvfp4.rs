//! 4-bit floats: NVFP4 with an 8-bit float scale per 16 numbers and one f32 per tensor, and MXFP4. The f32 becomes a scale of rows.

use std::sync::Arc;

use safetensors::Dtype;

use super::computed::Rows;
use super::operand::{FLOATS, Operand, encode};
use super::rewriter::Rewriter;
use crate::error::Result;
use crate::quantization::{Mode, QuantScheme};

const NVFP4: QuantScheme = QuantScheme { mode: Mode::Nvfp4, bits: 4, group_size: 16 };

/// Replaces the tensors of ModelOpt: `weight` in bytes, `weight_scale` in 8-bit floats and `weight_scale_2`.
pub(super) fn rewrite(rewriter: &mut Rewriter) -> Result<()> {
    for module in rewriter.modules("weight", &[Dtype::U8]) {
        let codes = rewriter.take(&module, "weight")?;
        let scales = rewriter.take(&module, "weight_scale")?;
        let global = rewriter.take(&module, "weight_scale_2")?;
        scales.expect_type(&[Dtype::F8_E4M3])?;
        replace(rewriter, module, &codes, &scales, NVFP4)?.with_factor(rewriter, &global, false)?;
    }
    Ok(())
}

/// Replaces the tensors of compressed-tensors: `weight_packed`, `weight_scale` and, for NVFP4, `weight_global_scale`, which divides.
pub(super) fn packed(rewriter: &mut Rewriter, module: String) -> Result<()> {
    let codes = rewriter.take(&module, "weight_packed")?;
    let scales = rewriter.take(&module, "weight_scale")?;
    scales.expect_type(&[Dtype::F8_E4M3, Dtype::U8, Dtype::F8_E8M0])?;
    if scales.dtype() != Dtype::F8_E4M3 {
        return replace(rewriter, module, &codes, &scales, QuantScheme::MXFP4).map(drop);
    }
    let global = rewriter.take(&module, "weight_global_scale")?;
    replace(rewriter, module, &codes, &scales, NVFP4)?.with_factor(rewriter, &global, true)
}

/// A module whose codes and scales were replaced.
struct Replaced {
    module: String,
    outputs: usize,
}

/// Adds the codes, `[outputs, inputs / 2]` bytes, and their scales.
fn replace(
    rewriter: &mut Rewriter,
    module: String,
    codes: &Operand,
    scales: &Operand,
    scheme: QuantScheme,
) -> Result<Replaced> {
    let [outputs, bytes] = codes.matrix()?;
    let inputs = bytes * 2;
    let Some(words) = scheme.words(inputs) else {
        return Err(codes.error(format_args!("has rows of {inputs} numbers, which {scheme} cannot hold")));
    };
    scales.expect_shape(&[outputs, inputs / scheme.group_size])?;
    rewriter.put_as(&module, "weight", codes, Dtype::U32, vec![outputs, words]);
    rewriter.put_as(&module, "scales", scales, Dtype::U8, scales.shape().to_vec());
    rewriter.set_scheme(module.clone(), scheme);
    Ok(Replaced { module, outputs })
}

impl Replaced {
    /// Adds one factor of all rows, or its inverse.
    fn with_factor(self, rewriter: &mut Rewriter, factor: &Arc<Operand>, divides: bool) -> Result<()> {
        factor.expect_type(&FLOATS)?;
        if factor.shape().iter().product::<usize>() != 1 {
            return Err(factor.error(format_args!("has shape {:?}; it must be one number", factor.shape())));
        }
        let form = (Dtype::F32, vec![self.outputs, 1]);
        let rows = Factor { factor: Arc::clone(factor), divides };
        rewriter.put(&format!("{}.row_scales", self.module), form, rows, factor, factor.entry.file_bytes);
        Ok(())
    }
}

/// Rows with one number, all equal.
#[derive(Debug)]
struct Factor {
    factor: Arc<Operand>,
    divides: bool,
}

impl Rows for Factor {
    fn fill(&self, _first: usize, bytes: &mut [u8]) -> Result<()> {
        let factor = self.factor.floats(0, 1)?.first().copied().unwrap_or(1.0);
        encode(std::iter::repeat(if self.divides { factor.recip() } else { factor }), Dtype::F32, bytes);
        Ok(())
    }
}
