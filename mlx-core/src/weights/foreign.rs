//! Checkpoints that tools other than MLX's quantized: their tensors are replaced by tensors in MLX's packing, most of them computed while
//! they are read. Afterwards the checkpoint looks like one of MLX's.

mod affine;
mod compressed_tensors;
mod computed;
mod float8;
mod nvfp4;
mod one_bit;
mod operand;
mod rewriter;
#[cfg(test)]
mod tests;
mod transposed;

use super::checkpoint::{Checkpoint, Entry};
use super::survey::usual_float_type;
use crate::error::Result;
use crate::quantization::{QuantizationConfig, Tool};
use rewriter::Rewriter;

/// Name suffixes of tensors for quantized activations and caches, which are not quantized here, and of shapes before packing.
const UNUSED: [&str; 10] = [
    "input_scale",
    ".input_global_scale",
    ".input_scale_ub",
    "activation_scale",
    ".weight_shape",
    ".output_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".kv_scale",
];

/// Returns the bytes in the files of tensors that become floats while they are read.
pub(super) fn dequantized_bytes(checkpoint: &Checkpoint) -> u64 {
    let computed = checkpoint.entries().values().filter(|entry| entry.origin == Some(float8::ORIGIN));
    computed.map(|entry| entry.file_bytes).sum()
}

/// Replaces the tensors of quantized modules. Returns the settings of the result.
pub(super) fn rewrite(
    checkpoint: &mut Checkpoint,
    quantization: QuantizationConfig,
) -> Result<QuantizationConfig> {
    let Some(foreign) = quantization.foreign().cloned() else {
        return if quantization.has_one_bit() {
            one_bit::widen(checkpoint, quantization)
        } else {
            Ok(quantization)
        };
    };
    let mut rewriter = Rewriter::new(checkpoint);
    rewriter.expect_no_input_scales()?;
    match foreign.tool {
        Tool::CompressedTensors => {
            compressed_tensors::rewrite(&mut rewriter, &foreign)?;
            float8::rewrite(&mut rewriter, &foreign)?;
        }
        Tool::Fp8 => float8::rewrite(&mut rewriter, &foreign)?,
        Tool::ModelOpt => {
            nvfp4::rewrite(&mut rewriter)?;
            float8::rewrite(&mut rewriter, &foreign)?;
        }
        Tool::Awq | Tool::Gptq { .. } => transposed::rewrite(&mut rewriter, &foreign)?,
    }
    let schemes = rewriter.into_schemes();
    checkpoint.skip(|name| UNUSED.iter().any(|end| name.ends_with(end)));
    // The scales of quantized modules, and weights that become floats, do not show the type of the model.
    let is_plain = |(name, entry): &(&String, &Entry)| {
        let module = name.rsplit_once('.').map_or("", |(module, _)| module);
        entry.origin.is_none() && !schemes.contains_key(module)
    };
    let plain = checkpoint.entries().iter().filter(is_plain).map(|(_, entry)| entry);
    let float_type = usual_float_type(plain);
    checkpoint.set_float_type(float_type);
    Ok(QuantizationConfig::of_modules(schemes))
}
