//! Reads the weights of a model folder, one tensor at a time, as the device is to hold them.

mod checkpoint;
mod floats;
mod survey;

use std::path::Path;

use mlx_rs::{Array, Dtype};
use xxhash_rust::xxh3::Xxh3;

use crate::array;
use crate::error::{Error, Result};
use crate::quantization::QuantizedMatrix;
use crate::quantization::{QuantScheme, QuantizationConfig};
pub(crate) use checkpoint::{Checkpoint, Entry};
pub use checkpoint::{INDEX, files};
pub use floats::FloatPolicy;
pub use survey::{Kind, Kinds, Tally};

/// Called with the bytes read so far and the bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// How the device is to hold weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightPolicy {
    /// The type of floats.
    pub floats: FloatPolicy,
    /// Whether what is packed in the files stays packed.
    pub keep_packed: bool,
}

impl WeightPolicy {
    /// The right policy for the default device. A GPU keeps packed weights; on a CPU, where products with them are slow, they
    /// become floats, unless they are to be kept.
    pub fn for_device(keep_packed: bool) -> Result<Self> {
        Ok(Self { floats: FloatPolicy::for_device()?, keep_packed: keep_packed || array::on_gpu()? })
    }

    /// The same, but for the type of floats if one is given.
    #[must_use]
    pub fn with_floats(self, floats: Option<FloatPolicy>) -> Self {
        Self { floats: floats.unwrap_or(self.floats), ..self }
    }
}

/// The tensors of a folder that nobody has taken yet.
pub struct Weights<'a> {
    checkpoint: Checkpoint,
    renamed: Vec<(&'static str, &'static str)>,
    recipe: QuantizationConfig,
    policy: WeightPolicy,
    dtype: Dtype,
    tally: Tally,
    read: u64,
    /// Of every tensor that was taken.
    hash: Xxh3,
    progress: Progress<'a>,
}

impl<'a> Weights<'a> {
    /// Opens the safetensors files of `folder`, of which `recipe` says how they were quantized. Reads headers only.
    pub fn open(
        folder: &Path,
        recipe: QuantizationConfig,
        policy: WeightPolicy,
        progress: Progress<'a>,
    ) -> Result<Self> {
        let checkpoint = Checkpoint::open(folder)?;
        let tally = Tally::new(&checkpoint, policy.floats);
        let dtype = array::float_dtype(tally.dtype).unwrap_or(Dtype::Float32);
        let mut hash = Xxh3::new();
        // QuantizedMatrix weights make other sums than the same ones unpacked.
        hash.update(&[u8::from(policy.keep_packed)]);
        Ok(Self { checkpoint, renamed: Vec::new(), recipe, policy, dtype, tally, read: 0, hash, progress })
    }

    /// What [`Weights::dtype`] is called.
    pub fn label(&self) -> &'static str {
        self.tally.label()
    }

    /// The float type that every tensor is handed out in.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// From now on tensors are asked for by other names than they have in the files: in each name, the first text of every pair
    /// stands for the second.
    pub fn rename(&mut self, pairs: &[(&'static str, &'static str)]) {
        self.renamed.extend(pairs);
    }

    /// The name in the files of the tensor that the decoder calls `name`.
    fn in_files(&self, name: &str) -> String {
        self.renamed.iter().fold(name.to_owned(), |name, (ours, theirs)| name.replacen(ours, theirs, 1))
    }

    /// Whether a tensor called `name` is still there.
    pub fn has(&self, name: &str) -> bool {
        self.checkpoint.has(&self.in_files(name))
    }

    /// The shape in the files of the tensor called `name`, if it is still there.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.checkpoint.entries().get(&self.in_files(name)).map(|entry| entry.shape.as_slice())
    }

    /// Whether two tensors that are still there are the same.
    pub fn are_equal(&mut self, one: &str, other: &str) -> Result<bool> {
        let (one, other) = (self.in_files(one), self.in_files(other));
        self.checkpoint.are_equal(&one, &other)
    }

    /// Drops a tensor that this decoder has no use for, if it is there.
    pub fn skip(&mut self, name: &str) {
        let name = self.in_files(name);
        self.checkpoint.skip(|other| other == name);
    }

    /// Drops the tensors whose names in the files begin with one of `prefixes`.
    pub fn skip_under(&mut self, prefixes: &[&str]) {
        self.checkpoint.skip(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    }

    /// Drops the tensors for whose names in the files `unused` holds.
    pub fn skip_all(&mut self, unused: impl Fn(&str) -> bool) {
        self.checkpoint.skip(unused);
    }

    /// Takes the tensor `name`, which must have exactly `shape`, as an array of [`Weights::dtype`]. A matrix, or a stack of them
    /// `[..., output, input]`, that is packed in the files is unpacked.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Array> {
        let name = self.in_files(name);
        let array = match self.packing(&name) {
            Some((module, packing)) => {
                let before = self.read;
                let packed = self.take_triplet(module, shape, packing)?;
                self.tally.unpacked_bytes += self.read - before;
                packed.unpacked(self.dtype)?
            }
            None => self.take_floats(&name, shape, "config.json")?,
        };
        self.count(shape, array.nbytes());
        Ok(array)
    }

    /// Takes the matrix or stack of matrices `{module}.weight`, `[..., output, input]`, packed, if it is packed in the files and
    /// the policy keeps it so.
    pub fn take_quantized(&mut self, module: &str, shape: &[usize]) -> Result<Option<QuantizedMatrix>> {
        let name = self.in_files(&format!("{module}.weight"));
        let Some((module, packing)) = self.packing(&name).filter(|_| self.policy.keep_packed) else {
            return Ok(None);
        };
        let packed = self.take_triplet(module, shape, packing)?;
        self.count(shape, packed.bytes());
        Ok(Some(packed))
    }

    /// Takes a stack of matrices `[experts, output, input]` in mxfp4 as gpt-oss was published: `{name}_blocks` of bytes with two
    /// numbers each, `[experts, output, groups, 16]`, and `{name}_scales`, `[experts, output, groups]`.
    pub fn take_blocks(&mut self, name: &str, shape: [usize; 3]) -> Result<QuantizedMatrix> {
        let packing = QuantScheme::MXFP4;
        let [experts, outputs, inputs] = shape;
        let groups = inputs / packing.group_size;
        let name = self.in_files(name);
        let reason = format!("a stack of matrices {shape:?} in {packing}");
        let bytes = [experts, outputs, groups, packing.group_size / 2];
        let words = self.take_words(&format!("{name}_blocks"), &bytes, &reason, safetensors::Dtype::U8)?;
        let scales = [experts, outputs, groups];
        let scales = self.take_words(&format!("{name}_scales"), &scales, &reason, safetensors::Dtype::U8)?;
        let words = words.view_dtype(Dtype::Uint32)?.reshape(&[experts as i32, outputs as i32, -1])?;
        let packed = QuantizedMatrix::new(packing, words, scales, None);
        let held = if self.policy.keep_packed { packed.bytes() } else { inputs * outputs * experts * 4 };
        self.count(&shape, held);
        Ok(packed)
    }

    /// Whether what is packed in the files stays packed.
    pub fn keeps_packed(&self) -> bool {
        self.policy.keep_packed
    }

    /// What taking all that is still there comes to, from the headers alone.
    pub fn survey(&self) -> (Tally, Kinds) {
        survey::survey(&self.checkpoint, &self.recipe, self.policy, self.tally)
    }

    /// The tensors that are still there, as they lie in the files.
    pub(crate) fn into_checkpoint(self) -> Checkpoint {
        self.checkpoint
    }

    /// Ends the reading: a tensor that nothing has taken is an error, since the model would not be the one that was saved.
    pub fn finish(mut self) -> Result<Tally> {
        self.tally.hash = self.hash.digest128();
        let Some((name, entry)) = self.checkpoint.entries().iter().next() else {
            self.tally.log();
            return Ok(self.tally);
        };
        let names: Vec<&str> = self.checkpoint.entries().keys().take(8).map(String::as_str).collect();
        let more = self.checkpoint.entries().len().saturating_sub(names.len());
        let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
        tracing::debug!(first = name, "unused tensors");
        let message = format!("tensors that config.json has no place for: {}{tail}", names.join(", "));
        Err(self.checkpoint.error(entry, message))
    }

    /// The module whose weights the tensor `name` of the files holds, and how they are packed, if they are.
    fn packing<'n>(&self, name: &'n str) -> Option<(&'n str, QuantScheme)> {
        let module = name.strip_suffix(".weight")?;
        let scaled = self.checkpoint.has(&format!("{module}.scales"));
        Some((module, self.recipe.of(module, scaled)?))
    }

    fn count(&mut self, shape: &[usize], bytes: usize) {
        self.tally.parameters += shape.iter().product::<usize>() as u64;
        self.tally.device_bytes += bytes as u64;
        (self.progress)(self.read, self.tally.file_bytes);
    }

    /// The words, scales and biases of `module`, a matrix or stack of matrices of this shape.
    fn take_triplet(
        &mut self,
        module: &str,
        shape: &[usize],
        packing: QuantScheme,
    ) -> Result<QuantizedMatrix> {
        let name = format!("{module}.weight");
        let (inputs, rows) = shape.split_last().unwrap_or((&0, &[]));
        let Some(words) = packing.words(*inputs) else {
            let message = format!("tensor {name} has rows of {inputs} numbers, which {packing} cannot pack");
            return Err(Error::file(self.checkpoint.place(), message));
        };
        let reason = format!("a matrix {shape:?} in {packing}");
        let row = |width: usize| [rows, &[width]].concat();
        let (packed, grouped) = (row(words), row(inputs / packing.group_size));
        let (scale, bias) = (format!("{module}.scales"), format!("{module}.biases"));
        let weight = self.take_words(&name, &packed, &reason, safetensors::Dtype::U32)?;
        let (scales, biases) = if packing.has_biases() {
            let scales = self.take_floats(&scale, &grouped, &reason)?;
            (scales, Some(self.take_floats(&bias, &grouped, &reason)?))
        } else {
            (self.take_words(&scale, &grouped, &reason, safetensors::Dtype::U8)?, None)
        };
        Ok(QuantizedMatrix::new(packing, weight, scales, biases))
    }

    fn take_floats(&mut self, name: &str, shape: &[usize], reason: &str) -> Result<Array> {
        // Before its shape, which is not that of floats either.
        if let Some(entry) = self.checkpoint.entries().get(name)
            && entry.dtype == safetensors::Dtype::U32
        {
            let message = format!(
                "tensor {name} is packed (U32), but it has no scales, or quantization in config.json does not say how it is packed"
            );
            return Err(self.checkpoint.error(entry, message));
        }
        let entry = self.checkpoint.take(name, shape, reason)?;
        let Some(dtype) = array::float_dtype(entry.dtype) else {
            let message =
                format!("tensor {name} has type {:?}; supported are F32, F16 and BF16", entry.dtype);
            return Err(self.checkpoint.error(&entry, message));
        };
        let array = self.read_array(&entry, dtype)?.as_dtype(self.dtype)?;
        array.eval()?;
        Ok(array)
    }

    fn take_words(
        &mut self,
        name: &str,
        shape: &[usize],
        reason: &str,
        wanted: safetensors::Dtype,
    ) -> Result<Array> {
        let entry = self.checkpoint.take(name, shape, reason)?;
        if entry.dtype != wanted {
            let message = format!("tensor {name} has type {:?}; {reason} asks for {wanted:?}", entry.dtype);
            return Err(self.checkpoint.error(&entry, message));
        }
        let dtype = if wanted == safetensors::Dtype::U8 { Dtype::Uint8 } else { Dtype::Uint32 };
        self.read_array(&entry, dtype)
    }

    fn read_array(&mut self, entry: &Entry, dtype: Dtype) -> Result<Array> {
        let bytes = self.checkpoint.read(entry)?;
        self.hash.update(&bytes);
        let shape: Vec<i32> = entry.shape.iter().map(|&size| size as i32).collect();
        self.read += entry.length as u64;
        array::from_bytes(&bytes, dtype, &shape)
    }
}
