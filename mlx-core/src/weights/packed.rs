//! Takes matrices that are quantized in the files, as they are there.

use mlx_rs::Dtype;

use super::{FloatPolicy, Weights};
use crate::error::{Error, Result};
use crate::quantization::{QuantScheme, QuantizedMatrix};

impl Weights<'_> {
    /// Takes the matrix or stack of matrices `{module}.weight`, `[..., output, input]`, without dequantizing it, if it is quantized in
    /// the files and the policy keeps it packed.
    pub fn take_quantized(&mut self, module: &str, shape: &[usize]) -> Result<Option<QuantizedMatrix>> {
        let name = self.in_files(&format!("{module}.weight"));
        let Some((module, scheme)) = self.scheme(&name).filter(|_| self.policy.keep_packed) else {
            return Ok(None);
        };
        let packed = self.take_triplet(module, shape, scheme)?;
        self.count(shape, packed.bytes());
        Ok(Some(packed))
    }

    /// Takes a stack of matrices `[experts, output, input]` in the mxfp4 format that gpt-oss was published in: `{name}_blocks`,
    /// `[experts, output, groups, 16]`, with two numbers a byte, and `{name}_scales`, `[experts, output, groups]`.
    pub fn take_blocks(&mut self, name: &str, shape: [usize; 3]) -> Result<QuantizedMatrix> {
        let scheme = QuantScheme::MXFP4;
        let [experts, outputs, inputs] = shape;
        let groups = inputs / scheme.group_size;
        let name = self.in_files(name);
        let reason = format!("a stack of matrices {shape:?} in {scheme}");
        let bytes = [experts, outputs, groups, scheme.group_size / 2];
        let words = self.take_words(&format!("{name}_blocks"), &bytes, &reason, safetensors::Dtype::U8)?;
        let scales = [experts, outputs, groups];
        let scales = self.take_words(&format!("{name}_scales"), &scales, &reason, safetensors::Dtype::U8)?;
        let words = words.view_dtype(Dtype::Uint32)?.reshape(&[experts as i32, outputs as i32, -1])?;
        let packed = QuantizedMatrix::new(scheme, words, scales, None);
        let held = if self.policy.keep_packed { packed.bytes() } else { inputs * outputs * experts * 4 };
        self.count(&shape, held);
        Ok(packed)
    }

    /// Whether quantized weights stay packed.
    pub fn keeps_packed(&self) -> bool {
        self.policy.keep_packed
    }

    /// Whether there are quantized weights that stay packed.
    pub(crate) fn has_packed(&self) -> bool {
        self.policy.keep_packed && self.names().any(|name| name.ends_with("scales"))
    }

    /// Takes the words, scales and biases of `module`, a matrix or stack of matrices of this shape.
    pub(super) fn take_triplet(
        &mut self,
        module: &str,
        shape: &[usize],
        scheme: QuantScheme,
    ) -> Result<QuantizedMatrix> {
        let name = format!("{module}.weight");
        let (inputs, rows) = shape.split_last().unwrap_or((&0, &[]));
        let Some(words) = scheme.words(*inputs) else {
            let message = format!("tensor {name} has rows of {inputs} numbers, which {scheme} cannot hold");
            return Err(Error::file(self.checkpoint.main_file(), message));
        };
        let reason = format!("a matrix {shape:?} in {scheme}");
        let row = |width: usize| [rows, &[width]].concat();
        let (packed, grouped) = (row(words), row(inputs / scheme.group_size));
        let as_in_files = self.policy.floats == FloatPolicy::Mixed;
        let (scale, bias) = (format!("{module}.scales"), format!("{module}.biases"));
        let weight = self.take_words(&name, &packed, &reason, safetensors::Dtype::U32)?;
        let (scales, biases) = if scheme.has_biases() {
            let scales = self.take_floats(&scale, &grouped, &reason, as_in_files)?;
            (scales, Some(self.take_floats(&bias, &grouped, &reason, as_in_files)?))
        } else {
            (self.take_words(&scale, &grouped, &reason, safetensors::Dtype::U8)?, None)
        };
        Ok(QuantizedMatrix::new(scheme, weight, scales, biases))
    }
}
