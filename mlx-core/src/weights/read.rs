//! Takes tensors from the files as arrays. Several tensors of the same format can become one array.

use mlx_rs::{Array, Dtype};
use safetensors::Dtype as FileDtype;

use super::Weights;
use super::checkpoint::Entry;
use super::tensor::{NamedShape, TensorRequest};
use crate::array;
use crate::error::Result;
use crate::quantization::{MATRIX_PARTS, QuantScheme};

/// The largest tensor of integers that loading reads at once.
const MAX_INTEGER_BYTES: usize = 1 << 20;

/// The storage format of a module's matrix.
#[derive(PartialEq)]
struct StorageFormat {
    scheme: Option<QuantScheme>,
    /// The types of its weight, scales, biases and row scales in the files; `None` for a missing tensor.
    in_files: [Option<FileDtype>; 4],
    stays_half: bool,
    is_wide: bool,
}

impl Weights<'_> {
    /// Returns true if the matrices of two modules can be taken as one.
    pub(crate) fn have_same_format(&self, one: &str, other: &str) -> bool {
        let form = self.form(one);
        // Joining in f32 before the conversion to halves would take more memory than joining the halves.
        let narrows = form.in_files[0] == Some(FileDtype::F32) && self.dtype != Dtype::Float32;
        !narrows && form == self.form(other) && self.have_same_inputs(one, other)
    }

    fn form(&self, module: &str) -> StorageFormat {
        let name = self.file_name_of(&format!("{module}.weight"));
        let parts = MATRIX_PARTS.map(|end| self.file_name_of(&format!("{module}.{end}")));
        let entries = parts.map(|part| self.checkpoint.entries().get(&part));
        let stays_half = |entry: &Entry| self.policy.keeps_half(&name, entry.dtype, &entry.shape);
        StorageFormat {
            scheme: self.scheme(&name).map(|(_, scheme)| scheme),
            in_files: entries.map(|entry| entry.map(|entry| entry.dtype)),
            stays_half: entries[0].is_some_and(stays_half),
            is_wide: self.is_wide(&name),
        }
    }

    /// Takes the tensor `name`, which must have exactly `shape`, as an array of [`Weights::dtype`]. Dequantizes a quantized matrix or stack
    /// `[..., output, input]`.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Array> {
        self.take_dense(&[(name, shape)], false)
    }

    /// Like [`take`](Self::take), for the matrix or stack of a product. Halves keep their type if the policy says so. Several tensors
    /// of modules with the same format become one: their rows are concatenated in order.
    pub fn take_matrix(&mut self, tensors: &[NamedShape]) -> Result<Array> {
        self.take_dense(tensors, true)
    }

    fn take_dense(&mut self, tensors: &[NamedShape], is_matrix: bool) -> Result<Array> {
        let names = tensors.iter().map(|(name, shape)| (self.file_name_of(name), *shape));
        let in_files: Vec<(String, &[usize])> = names.collect();
        let array = match in_files.first().and_then(|(name, _)| Some(self.scheme(name)?.1)) {
            Some(scheme) => self.take_unpacked(&in_files, scheme)?,
            None => self.take_plain(in_files, is_matrix)?,
        };
        self.count(tensors, array.nbytes());
        Ok(array)
    }

    /// Takes the bias of a module. `None` if all its numbers are 0 and loading dropped it.
    pub(crate) fn take_bias(&mut self, module: &str, outputs: usize) -> Result<Option<Array>> {
        let name = format!("{module}.bias");
        if self.checkpoint.had_zeros(&self.file_name_of(&name)) {
            return Ok(None);
        }
        self.take(&name, &[outputs]).map(Some)
    }

    /// Takes quantized tensors, by their names in the files, as floats.
    fn take_unpacked(&mut self, tensors: &[(String, &[usize])], scheme: QuantScheme) -> Result<Array> {
        let module = |name| str::strip_suffix(name, ".weight").unwrap_or(name);
        let modules: Vec<NamedShape> = tensors.iter().map(|(name, shape)| (module(name), *shape)).collect();
        let before = self.read;
        let packed = self.take_packed(&modules, scheme)?;
        self.tally.unpacked_bytes += self.read - before;
        packed.dequantize(self.dtype)
    }

    /// Takes float tensors by their names in the files.
    fn take_plain(&mut self, tensors: Vec<(String, &[usize])>, is_matrix: bool) -> Result<Array> {
        let first = tensors.first().and_then(|(name, _)| Some((name, self.checkpoint.entries().get(name)?)));
        let keeps =
            |(name, entry): (&String, &Entry)| self.policy.keeps_half(name, entry.dtype, &entry.shape);
        let as_in_files = is_matrix && first.is_some_and(keeps);
        let wanted = |(name, shape): (String, &[usize])| TensorRequest {
            name,
            shape: shape.to_vec(),
            reason: "config.json".to_owned(),
        };
        self.take_floats(tensors.into_iter().map(wanted).collect(), as_in_files)
    }

    /// Takes floats of one type as one array, in that type or the device's.
    pub(super) fn take_floats(&mut self, wanted: Vec<TensorRequest>, as_in_files: bool) -> Result<Array> {
        // The shape of packed words is wrong too, so check the type first.
        for TensorRequest { name, .. } in &wanted {
            if let Some(entry) = self.checkpoint.entries().get(name)
                && entry.dtype == FileDtype::U32
            {
                let message = format!(
                    "tensor {name} is quantized (U32), but it has no scales, or quantization in config.json does not cover it"
                );
                return Err(self.checkpoint.error(entry, message));
            }
        }
        let is_wide = wanted.iter().any(|it| self.is_wide(&it.name));
        let mut dtype = self.dtype;
        let array = self.take_entries(wanted, |found| {
            let known = array::float_dtype(found);
            dtype = known.unwrap_or(dtype);
            known.is_none().then(|| "supported are F32, F16 and BF16".to_owned())
        })?;
        let held = match () {
            () if is_wide => Dtype::Float32,
            () if as_in_files => dtype,
            () => self.dtype,
        };
        let array = array.as_dtype(held)?;
        array.eval()?;
        Ok(array)
    }

    /// Takes a small tensor of integers with its shape, if present.
    pub(crate) fn take_integers(&mut self, name: &str) -> Result<Option<(Vec<usize>, Vec<i64>)>> {
        let Some(entry) = self.checkpoint.entries().get(name).cloned() else { return Ok(None) };
        self.checkpoint.skip(|other| other == name);
        if entry.length > MAX_INTEGER_BYTES {
            return Err(self.checkpoint.error(&entry, format!("tensor {name} has {} bytes", entry.length)));
        }
        let bytes = self.checkpoint.read_part(&entry, 0..entry.length)?;
        let integers = match entry.dtype {
            FileDtype::I64 => bytes.as_chunks().0.iter().map(|it| i64::from_le_bytes(*it)).collect(),
            FileDtype::I32 => bytes.as_chunks().0.iter().map(|it| i32::from_le_bytes(*it).into()).collect(),
            FileDtype::U32 => bytes.as_chunks().0.iter().map(|it| u32::from_le_bytes(*it).into()).collect(),
            other => {
                let message = format!("tensor {name} has type {other:?}; supported are I64, I32 and U32");
                return Err(self.checkpoint.error(&entry, message));
            }
        };
        Ok(Some((entry.shape.clone(), integers)))
    }

    /// Takes words or bytes as one array.
    pub(super) fn take_words(&mut self, wanted: Vec<TensorRequest>, expected: FileDtype) -> Result<Array> {
        let reason = wanted.first().map_or_else(String::new, |first| first.reason.clone());
        self.take_entries(wanted, |found| (found != expected).then(|| format!("{reason} needs {expected:?}")))
    }

    /// Takes tensors as one array in the type of the files. `fault` describes an unsupported type.
    fn take_entries(
        &mut self,
        wanted: Vec<TensorRequest>,
        mut fault: impl FnMut(FileDtype) -> Option<String>,
    ) -> Result<Array> {
        let mut entries = Vec::with_capacity(wanted.len());
        for TensorRequest { name, shape, reason } in wanted {
            let entry = self.checkpoint.take(&name, &shape, &reason)?;
            if let Some(fault) = fault(entry.dtype) {
                let message = format!("tensor {name} has type {:?}; {fault}", entry.dtype);
                return Err(self.checkpoint.error(&entry, message));
            }
            self.read += entry.file_bytes;
            entries.push(entry);
        }
        let (array, hashes) = self.checkpoint.array(&entries)?;
        self.hash.update(&hashes.concat());
        Ok(array)
    }

    /// Counts taken tensors, which have `bytes` bytes on the device.
    pub(super) fn count(&mut self, taken: &[NamedShape], bytes: usize) {
        self.tally.parameters +=
            taken.iter().map(|(_, shape)| shape.iter().product::<usize>() as u64).sum::<u64>();
        self.tally.device_bytes += bytes as u64;
        (self.progress)(self.read, self.tally.file_bytes);
    }

    /// Returns true if the tensor with this name in the files is always stored in f32.
    fn is_wide(&self, name: &str) -> bool {
        self.wide.iter().any(|end| name.ends_with(end))
    }
}
