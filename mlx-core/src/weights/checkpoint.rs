//! The safetensors files of a folder, or its npz file: their tensors and the location of the data. Every header is validated before it is used.

mod entry;
mod header;
mod npz;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlx_files::weight_files::{Index, shard_paths};
use mlx_rs::Array;
use safetensors::Dtype;
use xxhash_rust::xxh3::Xxh3;

use super::source::{self, BlockHash, ReadAt, Source, TensorFile};
use crate::error::{Error, Result};
use crate::mlx_sys::filled;
pub(crate) use entry::Entry;

/// Bytes of each tensor that [`Checkpoint::sample`] hashes.
const SAMPLE: usize = 64;

/// Bytes of two tensors that are compared at a time.
const COMPARED: usize = 1 << 20;

/// The tensors of a folder that have not been taken yet, by name.
#[derive(Default)]
pub(crate) struct Checkpoint {
    shards: Vec<Arc<dyn ReadAt>>,
    entries: BTreeMap<String, Entry>,
    /// The index file, if there is one.
    index: Option<Index>,
    /// The float type to compute in, if the types of the tensors do not show it.
    float_type: Option<Dtype>,
    /// The names of tensors of zeros that were dropped.
    zeros: BTreeSet<String>,
}

impl Checkpoint {
    /// Opens the single weights file, such as `model.safetensors`, or the shards that are numbered or listed in `model.safetensors.index.json`.
    /// Reads headers only.
    ///
    /// The headers determine the file of each tensor. The index may list missing tensors if the model does not need them.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let (paths, index) = shard_paths(folder)?;
        let mut checkpoint = Self { index, ..Self::default() };
        for path in paths {
            checkpoint.add_shard(path)?;
        }
        Ok(checkpoint)
    }

    /// Opens a single file with any name.
    pub(crate) fn open_file(path: PathBuf) -> Result<Self> {
        let mut checkpoint = Self::default();
        checkpoint.add_shard(path)?;
        Ok(checkpoint)
    }

    /// Returns a checkpoint without tensors that is computed in this type.
    pub(super) fn with_float_type(float_type: Option<Dtype>) -> Self {
        Self { float_type, ..Self::default() }
    }

    /// The float type to compute in, if the types of the tensors do not show it.
    pub(super) fn float_type(&self) -> Option<Dtype> {
        self.float_type
    }

    /// Sets the float type to compute in.
    pub(super) fn set_float_type(&mut self, float_type: Dtype) {
        self.float_type = Some(float_type);
    }

    /// Replaces tensors by tensors of `other` with the same names, shapes and kinds of numbers. Returns the names.
    pub(crate) fn overlay(&mut self, other: &mut Self) -> Result<BTreeSet<String>> {
        let is_float = |dtype| matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
        let names = other.entries.keys().cloned().collect();
        for (name, entry) in &other.entries {
            let fits = |old: &Entry| {
                old.shape == entry.shape
                    && (old.dtype == entry.dtype || is_float(old.dtype) && is_float(entry.dtype))
            };
            if !self.entries.get(name).is_some_and(fits) {
                let there = self.entries.get(name);
                let there = there.map_or_else(
                    || "has no such tensor".to_owned(),
                    |old| format!("has it with shape {:?} and type {:?}", old.shape, old.dtype),
                );
                let message = format!(
                    "tensor {name} has shape {:?} and type {:?}, but the model {there}",
                    entry.shape, entry.dtype
                );
                return Err(other.error(entry, message));
            }
        }
        let shards = self.shards.len();
        self.shards.append(&mut other.shards);
        let entries = std::mem::take(&mut other.entries).into_iter();
        let moved = entries.map(|(name, entry)| (name, Entry { file: shards + entry.file, ..entry }));
        self.entries.extend(moved);
        Ok(names)
    }

    /// Returns true if the tensor `name` has not been taken yet.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Returns true if the index lists the tensor `name`, even if no shard contains it.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.index.as_ref().is_some_and(|index| index.weight_map.contains_key(name))
    }

    /// Drops the tensors that the index does not list.
    pub(super) fn skip_unnamed(&mut self) {
        if let Some(index) = &self.index {
            self.entries.retain(|name, _| index.weight_map.contains_key(name));
        }
    }

    /// The tensors that have not been taken yet.
    pub(crate) fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// Drops the tensors with names that satisfy `unused`.
    pub(super) fn skip(&mut self, unused: impl Fn(&str) -> bool) {
        self.entries.retain(|name, _| !unused(name));
    }

    /// Takes the tensor `name`, which must have exactly `shape`.
    pub(crate) fn take(&mut self, name: &str, shape: &[usize], reason: &str) -> Result<Entry> {
        let entry = self.entries.remove(name).ok_or_else(|| self.missing(name, shape))?;
        if entry.shape != shape {
            let message = format!("tensor {name} has shape {:?}, {reason} needs {shape:?}", entry.shape);
            return Err(self.error(&entry, message));
        }
        if let Some(side) = shape.iter().find(|side| **side > i32::MAX as usize) {
            let message = format!("tensor {name} has a side of {side}; the largest is 2147483647");
            return Err(self.error(&entry, message));
        }
        Ok(entry)
    }

    /// Returns the error about a tensor that no shard contains.
    fn missing(&self, name: &str, shape: &[usize]) -> Error {
        let named = self.index.as_ref().and_then(|index| index.weight_map.get(name));
        let hint = named.map_or_else(String::new, |file| format!("; the index names {file}"));
        Error::file(self.main_file(), format!("tensor {name} is missing, expected shape {shape:?}{hint}"))
    }

    /// Replaces the entry `name`.
    pub(super) fn replace(&mut self, name: &str, entry: Entry) {
        self.add_to_index(name, entry.file);
        self.entries.insert(name.to_owned(), entry);
    }

    /// Adds a tensor that other tensors became to the index, if there is one, so that the model must use it.
    fn add_to_index(&mut self, name: &str, file: usize) {
        if let Some(index) = &mut self.index {
            let file = self.shards[file].path().file_name().unwrap_or_default().to_string_lossy();
            index.weight_map.entry(name.to_owned()).or_insert_with(|| file.into_owned());
        }
    }

    /// Puts `prefix` before the names that satisfy `lacks`, in the index too.
    pub(super) fn add_prefix(&mut self, prefix: &str, lacks: impl Fn(&str) -> bool) {
        let full = |name: String| if lacks(&name) { format!("{prefix}{name}") } else { name };
        let entries = std::mem::take(&mut self.entries).into_iter();
        self.entries = entries.map(|(name, entry)| (full(name), entry)).collect();
        self.zeros = std::mem::take(&mut self.zeros).into_iter().map(full).collect();
        if let Some(index) = &mut self.index {
            let map = std::mem::take(&mut index.weight_map).into_iter();
            index.weight_map = map.map(|(name, file)| (full(name), file)).collect();
        }
    }

    /// Renames a tensor, if present.
    pub(super) fn rename_tensor(&mut self, name: &str, other: &str) {
        if let Some(entry) = self.entries.remove(name) {
            self.entries.insert(other.to_owned(), entry);
        }
    }

    /// Reads a tensor of floats, words or bytes in the file's type. Also returns the hashes of its blocks.
    ///
    /// Several tensors that differ only in their rows become one array: their rows are concatenated in order, within each matrix of a stack.
    pub(crate) fn array(&self, entries: &[Entry]) -> Result<(Array, Vec<BlockHash>)> {
        let Some((first, others)) = entries.split_first() else {
            return Err(Error::Array("an array needs a tensor".into()));
        };
        if !matches!(first.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::U32 | Dtype::U8) {
            return Err(self.error(first, format!("tensors of type {:?} cannot be read", first.dtype)));
        }
        let (mut shape, stack) = (first.shape.clone(), first.shape.len().saturating_sub(2));
        for other in others {
            let is_alike = other.dtype == first.dtype
                && other.shape.len() == shape.len()
                && (0..shape.len()).all(|axis| axis == stack || other.shape[axis] == shape[axis]);
            if !is_alike {
                return Err(
                    self.error(other, "tensors of different types or shapes cannot be joined".to_owned())
                );
            }
            shape[stack] += other.shape[stack];
        }
        let matrices = if others.is_empty() { 1 } else { shape[..stack].iter().product() };
        let parts = entries.iter().map(|entry| self.source(entry).parts(matrices));
        let parts = parts
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| self.error(first, "only tensors of whole matrices can be joined".to_owned()))?;
        let mut parts: Vec<_> = parts.into_iter().map(Vec::into_iter).collect();
        let matrix = |_| parts.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>();
        let sources: Vec<Source> = (0..matrices).flat_map(matrix).collect();
        filled(first.dtype, &shape, move |bytes| source::read(sources, bytes))
    }

    /// Returns the location of a tensor's bytes.
    pub(super) fn source(&self, entry: &Entry) -> Source {
        let Entry { file, start, length, ref cut, .. } = *entry;
        Source { file: Arc::clone(&self.shards[file]), start, length, cut: cut.clone() }
    }

    /// Reads a range of the bytes of a tensor that is not cut.
    pub(crate) fn read_part(&self, entry: &Entry, range: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; range.len()];
        self.shards[entry.file].read_at(entry.start + range.start as u64, &mut bytes)?;
        Ok(bytes)
    }

    /// Adds the name, type, shape and some bytes of each tensor to a hash.
    pub(crate) fn sample(&self, hash: &mut Xxh3) -> Result<()> {
        for (name, entry) in &self.entries {
            hash.update(format!("{name} {:?} {:?}", entry.dtype, entry.shape).as_bytes());
            // The beginning of a matrix may be padding.
            let middle = entry.length / 2;
            hash.update(&self.read_part(entry, middle..entry.length.min(middle + SAMPLE))?);
        }
        Ok(())
    }

    /// Returns true if two tensors are equal byte for byte; false if one of them was taken.
    pub(super) fn are_equal(&self, one: &str, other: &str) -> Result<bool> {
        let (Some(one), Some(other)) = (self.entries.get(one).cloned(), self.entries.get(other).cloned())
        else {
            return Ok(false);
        };
        if one.dtype != other.dtype || one.shape != other.shape {
            return Ok(false);
        }
        for begin in (0..one.length).step_by(COMPARED) {
            let part = begin..one.length.min(begin + COMPARED);
            if self.read_part(&one, part.clone())? != self.read_part(&other, part)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns an error about a tensor that names its file.
    pub(crate) fn error(&self, entry: &Entry, message: String) -> Error {
        Error::file(self.shards[entry.file].path(), message)
    }

    /// The file to name in an error about a missing tensor: the only file, the index, or else the folder.
    pub(crate) fn main_file(&self) -> PathBuf {
        let Some(first) = self.shards.first().map(|shard| shard.path()) else { return PathBuf::new() };
        match &self.index {
            Some(index) => index.path.clone(),
            None if self.shards.iter().all(|shard| shard.path() == first) => first.to_path_buf(),
            None => first.parent().unwrap_or(Path::new("")).to_path_buf(),
        }
    }

    /// Adds a tensor whose bytes are computed. Returns it, to set its bytes in the files if they differ.
    pub(super) fn add_computed(
        &mut self,
        name: String,
        dtype: Dtype,
        shape: Vec<usize>,
        data: Arc<dyn ReadAt>,
    ) -> &mut Entry {
        let length = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let (file, file_bytes) = (self.shards.len(), length as u64);
        self.shards.push(data);
        self.add_to_index(&name, file);
        let entry = Entry { file, file_bytes, ..Entry::of(dtype, shape, 0..length) };
        match self.entries.entry(name) {
            btree_map::Entry::Vacant(free) => free.insert(entry),
            btree_map::Entry::Occupied(mut old) => {
                old.insert(entry);
                old.into_mut()
            }
        }
    }

    /// Sets the format in the files of a tensor, if present.
    pub(super) fn set_origin(&mut self, name: &str, origin: &'static str) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.origin = Some(origin);
        }
    }

    /// Keeps a tensor in f32, if present.
    pub(super) fn keep_wide(&mut self, name: &str) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.is_wide = true;
        }
    }

    /// Drops a tensor if all its bytes are 0.
    pub(super) fn drop_zeros(&mut self, name: &str) -> Result<()> {
        if let Some(entry) = self.entries.get(name)
            && self.read_part(entry, 0..entry.length)?.iter().all(|byte| *byte == 0)
        {
            self.entries.remove(name);
            self.zeros.insert(name.to_owned());
        }
        Ok(())
    }

    /// Returns true if the tensor was dropped because all its numbers are 0.
    pub(super) fn had_zeros(&self, name: &str) -> bool {
        self.zeros.contains(name)
    }

    /// Removes a tensor.
    pub(super) fn remove(&mut self, name: &str) -> Option<Entry> {
        self.entries.remove(name)
    }

    fn add_shard(&mut self, path: PathBuf) -> Result<()> {
        let mut file = File::open(&path).map_err(|source| Error::io(&path, source))?;
        let is_npz = path.extension().is_some_and(|suffix| suffix == "npz");
        let (header_length, entries) =
            if is_npz { (0, npz::read(&path, &file)?) } else { header::read(&path, &mut file)? };
        let index = self.shards.len();
        for (name, mut entry) in entries {
            entry.file = index;
            entry.start += header_length;
            if self.entries.insert(name.clone(), entry).is_some() {
                return Err(Error::file(&path, format!("tensor {name} is also in another shard")));
            }
        }
        self.shards.push(Arc::new(TensorFile::new(path, file)));
        Ok(())
    }
}
