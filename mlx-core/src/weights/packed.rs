//! Takes matrices that are quantized in the files, without unpacking them.

use safetensors::Dtype;

use super::tensor::{LoadedMatrix, NamedShape, TensorRequest};
use super::{FloatPolicy, Weights};
use crate::error::{Error, Result};
use crate::quantization::{QuantScheme, QuantizedMatrix};

impl Weights<'_> {
    /// Takes the matrix or stack `{module}.weight`, `[..., output, input]`, packed if the policy says so. Several modules that are
    /// [alike](Self::have_same_format) become one matrix: their rows are concatenated in order.
    pub(crate) fn take_modules(&mut self, modules: &[NamedShape]) -> Result<LoadedMatrix> {
        if let Some(packed) = self.take_quantized(modules)? {
            return Ok(LoadedMatrix::Packed(packed));
        }
        let names: Vec<_> = modules.iter().map(|(module, _)| format!("{module}.weight")).collect();
        let tensors: Vec<_> = names.iter().map(String::as_str).zip(modules.iter().map(|it| it.1)).collect();
        self.take_matrix(&tensors).map(LoadedMatrix::Dense)
    }

    /// Like `take_modules`, but `None` unless the modules are quantized in the files and the policy keeps them packed.
    pub fn take_quantized(&mut self, modules: &[NamedShape]) -> Result<Option<QuantizedMatrix>> {
        let names = modules.iter().map(|(module, _)| self.file_name_of(&format!("{module}.weight")));
        let names: Vec<String> = names.collect();
        let scheme = names.first().and_then(|name| Some(self.scheme(name)?.1));
        let Some(scheme) = scheme.filter(|_| self.policy.keep_packed) else { return Ok(None) };
        let in_files = names.iter().map(|name| name.strip_suffix(".weight").unwrap_or(name));
        let in_files: Vec<NamedShape> = in_files.zip(modules.iter().map(|(_, shape)| *shape)).collect();
        let packed = self.take_packed(&in_files, scheme)?;
        self.count(modules, packed.bytes());
        Ok(Some(packed))
    }

    /// Takes a stack of matrices `[experts, output, input]` in the mxfp4 format of gpt-oss: `{name}_blocks`,
    /// `[experts, output, groups, 16]`, with two numbers per byte, and `{name}_scales`, `[experts, output, groups]`.
    pub fn take_blocks(&mut self, name: &str, shape: [usize; 3]) -> Result<QuantizedMatrix> {
        let scheme = QuantScheme::MXFP4;
        let [experts, outputs, inputs] = shape;
        let groups = inputs / scheme.group_size;
        let name = self.file_name_of(name);
        let reason = format!("a stack of matrices {shape:?} in {scheme}");
        let bytes = [experts, outputs, groups, scheme.group_size / 2];
        let mut take = |part: &str, shape: &[usize]| {
            let (name, shape, reason) = (format!("{name}_{part}"), shape.to_vec(), reason.clone());
            self.take_words(vec![TensorRequest { name, shape, reason }], Dtype::U8)
        };
        let words = take("blocks", &bytes)?;
        let scales = take("scales", &[experts, outputs, groups])?;
        let words =
            words.view_dtype(mlx_rs::Dtype::Uint32)?.reshape(&[experts as i32, outputs as i32, -1])?;
        let packed = QuantizedMatrix::new(scheme, words, scales, None);
        let held = if self.policy.keep_packed { packed.bytes() } else { inputs * outputs * experts * 4 };
        self.count(&[(&name, &shape)], held);
        Ok(packed)
    }

    /// Returns true if quantized weights stay packed.
    pub fn keeps_packed(&self) -> bool {
        self.policy.keep_packed
    }

    /// Returns true if some of the remaining weights are quantized and stay packed.
    pub(crate) fn has_packed(&self) -> bool {
        self.policy.keep_packed && self.names().any(|name| name.ends_with("scales"))
    }

    /// Takes the words, scales and biases of modules by their names in the files. Each is a matrix or a stack of matrices.
    pub(super) fn take_packed(
        &mut self,
        modules: &[NamedShape],
        scheme: QuantScheme,
    ) -> Result<QuantizedMatrix> {
        let mut parts: [Vec<TensorRequest>; 4] = Default::default();
        for (module, shape) in modules {
            let (inputs, rows) = shape.split_last().unwrap_or((&0, &[]));
            let Some(words) = scheme.words(*inputs) else {
                let message = format!(
                    "tensor {module}.weight has rows of {inputs} numbers, which {scheme} cannot hold"
                );
                return Err(Error::file(self.checkpoint.main_file(), message));
            };
            let groups = inputs / scheme.group_size;
            let widths = [("weight", words), ("scales", groups), ("biases", groups), ("row_scales", 1)];
            for (part, (end, width)) in parts.iter_mut().zip(widths) {
                part.push(TensorRequest {
                    name: format!("{module}.{end}"),
                    shape: [rows, &[width]].concat(),
                    reason: format!("a matrix {shape:?} in {scheme}"),
                });
            }
        }
        let is_wide =
            |it: &TensorRequest| self.checkpoint.entries().get(&it.name).is_some_and(|entry| entry.is_wide);
        let as_in_files = self.policy.floats == FloatPolicy::Mixed || parts[1].iter().all(is_wide);
        let [words, scales, biases, row_scales] = parts;
        let has_row_scales = row_scales.iter().any(|it| self.checkpoint.has(&it.name));
        let words = self.take_words(words, Dtype::U32)?;
        let (scales, biases) = if scheme.has_biases() {
            let scales = self.take_floats(scales, as_in_files)?;
            (scales, Some(self.take_floats(biases, as_in_files)?))
        } else {
            (self.take_words(scales, Dtype::U8)?, None)
        };
        let row_scales = if has_row_scales { Some(self.take_words(row_scales, Dtype::F32)?) } else { None };
        let inputs = self.take_input_change(modules)?;
        Ok(QuantizedMatrix::new(scheme, words, scales, biases)
            .with_row_scales(row_scales)
            .with_input_change(inputs))
    }
}
