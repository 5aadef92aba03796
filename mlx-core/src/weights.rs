//! Loads the weights of a model folder, one tensor at a time, in the type that the device will hold.

mod adapted;
mod base_names;
pub(crate) mod checkpoint;
mod cut;
mod floats;
mod foreign;
mod gguf;
mod input_change;
mod packed;
mod read;
mod shard;
mod sharded;
mod shared;
mod source;
mod survey;
mod tensor;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use mlx_rs::Dtype;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::adapter::Adapter;
use crate::array;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::quantization::{QuantScheme, QuantizationConfig};
pub(crate) use adapted::Factors;
pub(crate) use checkpoint::{Checkpoint, Entry};
pub(crate) use cut::AxisSelection;
pub use floats::{FloatPolicy, WeightPolicy};
pub(crate) use shard::{AllReduce, Shard};
pub(crate) use shared::Shared;
pub use survey::{Kind, Kinds, Tally};
pub(crate) use tensor::LoadedMatrix;

/// A callback with the bytes read so far and the total.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// The name under which models share the totals of the first model. No part of a model has this name.
const TOTALS: &str = "";

/// The tensors of a folder that have not been taken yet.
pub struct Weights<'a> {
    checkpoint: Checkpoint,
    renamed: Vec<(&'static str, &'static str)>,
    /// Suffixes of the names of tensors that are always stored in f32.
    wide: Vec<&'static str>,
    quantization: QuantizationConfig,
    policy: WeightPolicy,
    dtype: Dtype,
    tally: Tally,
    /// Bytes in the files of weights that become floats while they are read, since MLX lacks their format.
    dequantized: u64,
    read: u64,
    /// The hash of all tensors taken so far, block by block.
    hash: Xxh3,
    progress: Progress<'a>,
    /// The weights shared with other models of the same files.
    shared: Option<&'a Shared>,
    /// True if these weights belong to a part of the other model, and the part takes its shared tensors from there.
    reuses: bool,
    /// The adapter that changes the weights, if there is one.
    adapter: Option<Adapter>,
    /// The names in the files of tensors that the adapter has replaced.
    replaced: BTreeSet<String>,
    /// This machine's share of each layer, if several machines split the layers.
    shard: Option<Shard>,
}

impl<'a> Weights<'a> {
    /// Opens the safetensors files of `folder`, or a GGUF file, with these quantization settings. Reads only headers.
    pub fn open(
        folder: &Path,
        quantization: QuantizationConfig,
        policy: WeightPolicy,
        progress: Progress<'a>,
    ) -> Result<Self> {
        let mut checkpoint =
            if mlx_gguf::is_gguf(folder) { gguf::open(folder)? } else { Checkpoint::open(folder)? };
        let mut quantization = foreign::rewrite(&mut checkpoint, quantization)?;
        if let Some((prefix, lacks)) = base_names::missing_prefix(checkpoint.entries()) {
            checkpoint.add_prefix(prefix, &lacks);
            quantization.add_prefix(prefix, &lacks);
        }
        let tally = Tally::new(&checkpoint, policy.floats);
        let dtype = array::float_dtype(tally.dtype).unwrap_or(Dtype::Float32);
        let mut hash = Xxh3::new();
        // Weights in the files' types may give other sums than the same weights in the model's float type.
        hash.update(&[u8::from(policy.keep_packed), u8::from(policy.floats == FloatPolicy::Mixed)]);
        Ok(Self {
            renamed: Vec::new(),
            wide: Vec::new(),
            quantization,
            policy,
            dtype,
            tally,
            dequantized: foreign::dequantized_bytes(&checkpoint),
            read: 0,
            hash,
            progress,
            shared: None,
            reuses: false,
            adapter: None,
            replaced: BTreeSet::new(),
            shard: None,
            checkpoint,
        })
    }

    /// The choices for the device of the model.
    pub fn backend(&self) -> Backend {
        self.policy.backend
    }

    /// The name of [`Weights::dtype`].
    pub fn label(&self) -> &'static str {
        self.tally.label()
    }

    /// The float type of every tensor returned.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Maps the decoder's tensor names to names in the files: in each name, the first text of every pair is replaced by the second.
    pub fn rename(&mut self, pairs: &[(&'static str, &'static str)]) {
        self.renamed.extend(pairs);
    }

    /// Stores tensors with this name suffix in f32, regardless of [`Weights::dtype`].
    pub fn keep_f32(&mut self, end: &'static str) {
        self.wide.push(end);
    }

    /// Returns the name in the files of the decoder's tensor `name`.
    pub(crate) fn file_name_of(&self, name: &str) -> String {
        self.renamed.iter().fold(name.to_owned(), |name, (ours, theirs)| name.replacen(ours, theirs, 1))
    }

    /// Returns true if the tensor `name` exists and has not been taken yet.
    pub fn has(&self, name: &str) -> bool {
        self.checkpoint.has(&self.file_name_of(name))
    }

    /// Returns true if a module has a bias that has not been taken yet, or a dropped one of zeros.
    pub(crate) fn has_bias(&self, module: &str) -> bool {
        let name = self.file_name_of(&format!("{module}.bias"));
        self.checkpoint.has(&name) || self.checkpoint.had_zeros(&name)
    }

    /// Returns true if the index lists the tensor `name`, even if no shard contains it.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.checkpoint.is_named(&self.file_name_of(name))
    }

    /// Returns true if the name of a remaining tensor in the files contains `part`.
    pub fn has_under(&self, part: &str) -> bool {
        self.checkpoint.entries().keys().any(|name| name.contains(part))
    }

    /// The remaining tensors, by their names in the files.
    pub(crate) fn entries(&self) -> &BTreeMap<String, Entry> {
        self.checkpoint.entries()
    }

    /// The names in the files of all remaining tensors.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.checkpoint.entries().keys().map(String::as_str)
    }

    /// Returns the shape in the files of the tensor `name`, if it has not been taken yet.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.checkpoint.entries().get(&self.file_name_of(name)).map(|entry| entry.shape.as_slice())
    }

    /// Returns true if two tensors are equal; false if one of them was taken.
    pub fn are_equal(&self, one: &str, other: &str) -> Result<bool> {
        let (one, other) = (self.file_name_of(one), self.file_name_of(other));
        self.checkpoint.are_equal(&one, &other)
    }

    /// Drops a tensor that this decoder does not use, if present.
    pub fn skip(&mut self, name: &str) {
        let name = self.file_name_of(name);
        self.checkpoint.skip(|other| other == name);
    }

    /// Drops the tensors whose names in the files start with one of `prefixes`.
    pub fn skip_under(&mut self, prefixes: &[&str]) {
        self.checkpoint.skip(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    }

    /// Drops the tensors whose names in the files satisfy `unused`.
    pub fn skip_all(&mut self, unused: impl Fn(&str) -> bool) {
        self.checkpoint.skip(unused);
    }

    /// Creates an error about several tensors.
    pub(crate) fn error(&self, message: &str) -> Error {
        Error::file(self.checkpoint.main_file(), message)
    }

    /// Computes the totals of all remaining tensors. Reads only headers.
    pub fn survey(&self) -> (Tally, Kinds) {
        survey::survey(&self.checkpoint, &self.quantization, &self.wide, self.policy, self.tally)
    }

    /// Iterates over the remaining tensors: their names in the files and their bytes on the device. Reads only headers.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (&str, u64)> {
        let Self { checkpoint, quantization, wide, policy, tally, .. } = self;
        let size = |(name, entry): (&String, &Entry)| {
            survey::of_tensor(checkpoint, quantization, wide, *policy, tally.float_bytes(), (name, entry)).1
        };
        checkpoint.entries().iter().map(move |tensor| (tensor.0.as_str(), size(tensor).device_bytes))
    }

    /// Returns the remaining tensors, unchanged, and their quantization.
    pub(crate) fn into_checkpoint(self) -> (Checkpoint, QuantizationConfig) {
        (self.checkpoint, self.quantization)
    }

    /// Finishes loading. A tensor that was not taken is an error, since the loaded model would differ from the saved one.
    pub fn finish(mut self) -> Result<Tally> {
        self.tally.hash = self.hash.digest128();
        if self.adapter.is_some() {
            return self.finish_adapted();
        }
        if self.reuses {
            return Ok(self.tally);
        }
        if let Some(shared) = self.shared {
            shared.put(TOTALS, &self.tally);
        }
        // Tensors that neither the index nor the architecture names do not belong to the model.
        self.checkpoint.skip_unnamed();
        let Some((name, entry)) = self.checkpoint.entries().iter().next() else {
            self.tally.log(self.policy);
            if self.dequantized > 0 {
                let files = mlx_files::size(self.dequantized);
                tracing::info!(
                    files,
                    "FP8 weights with a scale per block are computed in bf16, since MLX lacks this format"
                );
            }
            return Ok(self.tally);
        };
        let names: Vec<&str> = self.checkpoint.entries().keys().take(8).map(String::as_str).collect();
        let more = self.checkpoint.entries().len().saturating_sub(names.len());
        let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
        tracing::debug!(first = name, "unused tensors");
        let message =
            format!("tensors that the architecture in config.json does not use: {}{tail}", names.join(", "));
        Err(self.checkpoint.error(entry, message))
    }

    /// Finishes loading adapted weights. All tensors of the adapter must have been taken. The model's tensors were checked before.
    fn finish_adapted(self) -> Result<Tally> {
        let (own, base) =
            (self.tally, self.shared.and_then(|shared| shared.get(TOTALS)).unwrap_or(self.tally));
        let Some(adapter) = self.adapter else { return Ok(own) };
        adapter.expect_taken()?;
        let hashes = [base.hash, own.hash, adapter.hash()].map(u128::to_le_bytes);
        Ok(Tally {
            parameters: base.parameters + adapter.added_parameters(),
            file_bytes: base.file_bytes + adapter.file_bytes(),
            device_bytes: base.device_bytes + own.device_bytes,
            hash: xxh3_128(&hashes.concat()),
            ..base
        })
    }

    /// Returns the module and the scheme of the tensor `name` in the files, if it is quantized.
    fn scheme<'n>(&self, name: &'n str) -> Option<(&'n str, QuantScheme)> {
        let module = name.strip_suffix(".weight")?;
        let scaled = self.checkpoint.has(&format!("{module}.scales"));
        Some((module, self.quantization.of(module, scaled)?))
    }
}
