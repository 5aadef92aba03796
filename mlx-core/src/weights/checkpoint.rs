//! The safetensors files of a folder: their tensors and the location of the data. Every header is validated before it is used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlx_files::weight_files::{Index, shard_paths};
use mlx_rs::Array;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::cut::Slice;
use super::gguf;
use super::source::{self, BlockHash, ReadAt, Source, TensorFile};
use crate::error::{Error, Result};
use crate::mlx_sys::filled;

/// The maximum header length (the format's own limit is 100 MB).
const MAX_HEADER_BYTES: u64 = 100 << 20;

/// Bytes of two tensors that are compared at a time.
const COMPARED: usize = 1 << 20;

/// The location, type and shape of one tensor.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    file: usize,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    start: u64,
    /// Length in bytes.
    pub(crate) length: usize,
    /// The selection of a larger tensor's bytes, if they are not contiguous in the file.
    cut: Option<Slice>,
}

impl Entry {
    /// Returns a range of its bytes. The tensor must not be cut.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        Self { start: self.start + range.start as u64, length: range.len(), ..self.clone() }
    }

    /// Returns a slice of the tensor with this shape.
    pub(super) fn cut(&self, shape: Vec<usize>, cut: Slice) -> Self {
        let elements: usize = self.shape.iter().product();
        let length = self.length / elements * shape.iter().product::<usize>();
        Self { shape, length, cut: Some(cut), ..self.clone() }
    }

    /// Returns true if it is a slice of a larger tensor.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.is_some()
    }
}

/// The tensors of a folder that have not been taken yet, by name.
#[derive(Default)]
pub(crate) struct Checkpoint {
    shards: Vec<Arc<dyn ReadAt>>,
    entries: BTreeMap<String, Entry>,
    /// The index file, if there is one.
    index: Option<Index>,
    /// The float type to compute in, if the types of the tensors do not show it.
    float_type: Option<Dtype>,
}

impl Checkpoint {
    /// Opens `model.safetensors`, or the shards that are numbered or listed in `model.safetensors.index.json`. Reads headers only.
    ///
    /// The headers determine the file of each tensor. The index may list missing tensors if the model does not need them. A GGUF file counts
    /// as a folder.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        if mlx_gguf::is_gguf(folder) {
            return gguf::open(folder);
        }
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
        self.entries.insert(name.to_owned(), entry);
    }

    /// Puts `prefix` before the names that satisfy `lacks`, in the index too.
    pub(super) fn add_prefix(&mut self, prefix: &str, lacks: impl Fn(&str) -> bool) {
        let full = |name: String| if lacks(&name) { format!("{prefix}{name}") } else { name };
        let entries = std::mem::take(&mut self.entries).into_iter();
        self.entries = entries.map(|(name, entry)| (full(name), entry)).collect();
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

    fn source(&self, entry: &Entry) -> Source {
        let Entry { file, start, length, ref cut, .. } = *entry;
        Source { file: Arc::clone(&self.shards[file]), start, length, cut: cut.clone() }
    }

    /// Reads a range of the bytes of a tensor that is not cut.
    pub(crate) fn read_part(&self, entry: &Entry, range: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; range.len()];
        self.shards[entry.file].read_at(entry.start + range.start as u64, &mut bytes)?;
        Ok(bytes)
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

    /// Adds a tensor whose bytes are computed.
    pub(super) fn add_computed(
        &mut self,
        name: String,
        dtype: Dtype,
        shape: Vec<usize>,
        data: Arc<dyn ReadAt>,
    ) {
        let length = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let entry = Entry { file: self.shards.len(), dtype, shape, start: 0, length, cut: None };
        self.shards.push(data);
        self.entries.insert(name, entry);
    }

    fn add_shard(&mut self, path: PathBuf) -> Result<()> {
        let mut file = File::open(&path).map_err(|source| Error::io(&path, source))?;
        let (header_length, entries) = read_header(&path, &mut file)?;
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

/// Reads a header. Returns its length including the prefix, and the tensors with `start` relative to the data.
fn read_header(path: &Path, file: &mut File) -> Result<(u64, Vec<(String, Entry)>)> {
    let fail = |message: String| Error::file(path, message);
    let size = file.metadata().map_err(|source| Error::io(path, source))?.len();
    let mut prefix = [0; 8];
    file.read_exact(&mut prefix).map_err(|_| fail(format!("{size} bytes is too short for safetensors")))?;
    let length = u64::from_le_bytes(prefix);
    if length > MAX_HEADER_BYTES || length + 8 > size {
        return Err(fail(format!(
            "the header should have {length} bytes, but the file has {size}; is it complete?"
        )));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(|source| Error::io(path, source))?;
    // Deserialization checks that the tensors are contiguous and that shapes match their byte ranges.
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| fail(format!("bad header: {error}")))?;
    let (claimed, present) = (metadata.data_len() as u64, size - 8 - length);
    if claimed != present {
        return Err(fail(format!(
            "has {present} bytes of tensors, but its header says {claimed}; is it complete?"
        )));
    }
    let entry = |info: &TensorInfo| Entry {
        file: 0,
        dtype: info.dtype,
        shape: info.shape.clone(),
        start: info.data_offsets.0 as u64,
        length: info.data_offsets.1 - info.data_offsets.0,
        cut: None,
    };
    let entries = metadata.tensors().into_iter().map(|(name, info)| (name, entry(info))).collect();
    Ok((8 + length, entries))
}

#[cfg(test)]
mod tests {
    use mlx_files::weight_files::SINGLE;
    use safetensors::serialize;
    use safetensors::tensor::TensorView;

    use super::*;
    use crate::array::to_bytes;
    use crate::device_lock::device;
    use crate::weights::cut::AxisSelection;

    #[test]
    fn stacks_are_joined_matrix_by_matrix() {
        let _turn = device();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (gate, up): (Vec<u8>, Vec<u8>) = ((0..24).collect(), (100..112).collect());
        let view = |shape: [usize; 3], bytes| TensorView::new(Dtype::U8, shape.to_vec(), bytes);
        let tensors = [("gate", view([2, 4, 3], &gate)), ("up", view([2, 2, 3], &up))];
        let tensors = tensors.map(|(name, view)| (name, view.expect("its shape fits")));
        let bytes = serialize(tensors, None).expect("they are tensors");
        std::fs::write(folder.path().join(SINGLE), bytes).expect("it is written");
        let checkpoint = Checkpoint::open(folder.path()).expect("a checkpoint");
        let [gate, up] = ["gate", "up"].map(|name| checkpoint.entries()[name].clone());
        let joined = |entries: &[Entry]| {
            let (array, _) = checkpoint.array(entries).expect("it is there");
            (array.shape().to_vec(), to_bytes(&array).expect("it is there").1)
        };
        let rows = |first: u8, count: u8| first..first + 3 * count;
        let whole = [rows(0, 4), rows(100, 2), rows(12, 4), rows(106, 2)].into_iter().flatten().collect();
        assert_eq!(joined(&[gate.clone(), up.clone()]), (vec![2, 6, 3], whole));
        // The second half of the rows, for one of two machines.
        let half = |entry: &Entry| {
            let places = AxisSelection { of: 2, ranges: vec![1..2; 1] };
            let (shape, cut) = Slice::at(&entry.shape, entry.length, 2, &places).expect("its rows are even");
            entry.cut(shape, cut)
        };
        let cut = [rows(6, 2), rows(103, 1), rows(18, 2), rows(109, 1)].into_iter().flatten().collect();
        assert_eq!(joined(&[half(&gate), half(&up)]), (vec![2, 3, 3], cut));
    }

    /// Each side of a shape is an i32 on the device, but their product may be larger. The file is sparse.
    #[test]
    fn a_tensor_may_have_more_elements_than_an_i32_counts() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(SINGLE);
        let shape = [262_144, 8_960];
        let size = 2 * (shape[0] * shape[1]) as u64;
        let header = format!(r#"{{"table":{{"dtype":"BF16","shape":{shape:?},"data_offsets":[0,{size}]}}}}"#);
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        std::fs::write(&path, &bytes).expect("it is written");
        let file = File::options().write(true).open(&path).expect("it is there");
        file.set_len(bytes.len() as u64 + size).expect("it is sparse");
        std::os::unix::fs::FileExt::write_all_at(&file, &[7, 9], bytes.len() as u64 + size - 2)
            .expect("writes");
        let mut checkpoint = Checkpoint::open(folder.path()).expect("a checkpoint");
        let entry = checkpoint.take("table", &shape, "the test").expect("its sides fit");
        let end = entry.length;
        assert_eq!(checkpoint.read_part(&entry, end - 4..end).expect("it is there"), [0, 0, 7, 9]);
        let last = entry.part(end - 2 * shape[1]..end);
        assert_eq!(checkpoint.read_part(&last, 2 * shape[1] - 1..2 * shape[1]).expect("it is there"), [9]);
    }
}
