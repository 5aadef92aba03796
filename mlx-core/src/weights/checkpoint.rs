//! The safetensors files of a folder: their tensors and where the bytes are. Every header is validated before it is used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlx_rs::Array;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::cut::Cut;
use super::source::{self, Source, TensorFile};
use crate::config::Fields;
use crate::error::{Error, Result};
use crate::mlx_sys::filled;

/// The largest header that is read (the format's own limit is 100 MB).
const MAX_HEADER_BYTES: u64 = 100 << 20;

/// Bytes of two tensors that are compared at a time.
const COMPARED: usize = 1 << 20;

/// The index file that maps each tensor to its shard.
pub const INDEX: &str = "model.safetensors.index.json";
/// The weights file of a model without shards.
const SINGLE: &str = "model.safetensors";

const MISSING: &str =
    "has no model.safetensors and no model.safetensors.index.json; only safetensors weights are read";

/// The location, type and shape of one tensor.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    file: usize,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    start: u64,
    /// Bytes.
    pub(crate) length: usize,
    /// Which bytes of a larger tensor they are, if they do not follow one another in the file.
    cut: Option<Cut>,
}

impl Entry {
    /// Some of its bytes. It was not cut.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        Self { start: self.start + range.start as u64, length: range.len(), ..self.clone() }
    }

    /// A part of it, of this shape.
    pub(super) fn cut(&self, shape: Vec<usize>, cut: Cut) -> Self {
        let elements: usize = self.shape.iter().product();
        let length = self.length / elements * shape.iter().product::<usize>();
        Self { shape, length, cut: Some(cut), ..self.clone() }
    }

    /// Whether it is a part of a larger tensor.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.is_some()
    }
}

/// The tensors of a folder that have not been taken yet, by name.
#[derive(Default)]
pub(crate) struct Checkpoint {
    shards: Vec<Arc<TensorFile>>,
    entries: BTreeMap<String, Entry>,
}

impl Checkpoint {
    /// Opens `model.safetensors`, or the shards that `model.safetensors.index.json` names. Reads headers only.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let (paths, index) = shard_paths(folder)?;
        let mut checkpoint = Self::default();
        for path in paths {
            checkpoint.add_shard(path)?;
        }
        if let Some(index) = index {
            checkpoint.check_index(&index)?;
        }
        Ok(checkpoint)
    }

    /// Opens a single file, whatever its name.
    pub(crate) fn open_file(path: PathBuf) -> Result<Self> {
        let mut checkpoint = Self::default();
        checkpoint.add_shard(path)?;
        Ok(checkpoint)
    }

    /// Puts the tensors of `other` in place of those of the same names, which must have their shapes and kinds of numbers. Returns the
    /// names.
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
                    "tensor {name} has shape {:?} and type {:?}, and the model that it is to be put into {there}",
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

    /// Whether the tensor `name` has not been taken yet.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The tensors that have not been taken yet.
    pub(crate) fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// Drops the tensors whose names satisfy `unused`.
    pub(super) fn skip(&mut self, unused: impl Fn(&str) -> bool) {
        self.entries.retain(|name, _| !unused(name));
    }

    /// Takes the tensor `name`, which must have exactly `shape`.
    pub(crate) fn take(&mut self, name: &str, shape: &[usize], reason: &str) -> Result<Entry> {
        let entry = self.entries.remove(name).ok_or_else(|| {
            Error::file(self.main_file(), format!("tensor {name} is missing, expected shape {shape:?}"))
        })?;
        if entry.shape != shape {
            let message = format!("tensor {name} has shape {:?}, {reason} needs {shape:?}", entry.shape);
            return Err(self.error(&entry, message));
        }
        if shape.iter().product::<usize>() > i32::MAX as usize {
            return Err(self.error(&entry, format!("tensor {name} has more than 2147483647 elements")));
        }
        Ok(entry)
    }

    /// Puts an entry in place of one of the same name.
    pub(super) fn replace(&mut self, name: &str, entry: Entry) {
        self.entries.insert(name.to_owned(), entry);
    }

    /// Renames a tensor if it is there.
    pub(super) fn rename_tensor(&mut self, name: &str, other: &str) {
        if let Some(entry) = self.entries.remove(name) {
            self.entries.insert(other.to_owned(), entry);
        }
    }

    /// The numbers of a tensor in the file's type, which must be one of floats, words or bytes, and the hashes of its blocks.
    ///
    /// Several tensors of one type, which are alike but for their rows, give one array: the rows of each after those of the one before; of
    /// stacks, in each matrix.
    pub(crate) fn array(&self, entries: &[Entry]) -> Result<(Array, Vec<u64>)> {
        let Some((first, others)) = entries.split_first() else {
            return Err(Error::Array("an array needs a tensor".into()));
        };
        let (mut shape, stack) = (first.shape.clone(), first.shape.len().saturating_sub(2));
        if let Some(rows) = shape.get_mut(stack) {
            *rows += others.iter().map(|other| other.shape[stack]).sum::<usize>();
        }
        let matrices = if others.is_empty() { 1 } else { shape[..stack].iter().product() };
        let mut parts: Vec<_> = entries.iter().map(|entry| self.source(entry).parts(matrices)).collect();
        let sources =
            (0..matrices).flat_map(|_| parts.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>());
        let sources: Vec<Source> = sources.collect();
        filled(first.dtype, &shape, move |bytes| source::read(sources, bytes))
    }

    fn source(&self, entry: &Entry) -> Source {
        let Entry { file, start, length, ref cut, .. } = *entry;
        Source { file: Arc::clone(&self.shards[file]), start, length, cut: cut.clone() }
    }

    /// A range of the bytes of a tensor that was not cut.
    pub(crate) fn read_part(&self, entry: &Entry, range: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; range.len()];
        self.shards[entry.file].read_at(entry.start + range.start as u64, &mut bytes)?;
        Ok(bytes)
    }

    /// Whether two tensors are equal byte for byte; false if one of them was taken.
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

    /// An error about a tensor that names its file.
    pub(crate) fn error(&self, entry: &Entry, message: String) -> Error {
        Error::file(&self.shards[entry.file].path, message)
    }

    /// The file to name in an error about a missing tensor: the only file, or the index.
    pub(crate) fn main_file(&self) -> PathBuf {
        match self.shards.as_slice() {
            [only] => only.path.clone(),
            shards => shards
                .first()
                .and_then(|shard| shard.path.parent())
                .map(|folder| folder.join(INDEX))
                .unwrap_or_default(),
        }
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
        self.shards.push(Arc::new(TensorFile { path, file }));
        Ok(())
    }

    fn check_index(&self, index: &Index) -> Result<()> {
        for (name, file) in &index.weight_map {
            let shard = self.entries.get(name).map(|entry| &self.shards[entry.file].path);
            if shard.and_then(|path| path.file_name()) != Some(file.as_ref()) {
                return Err(Error::file(&index.path, format!("weight_map.{name} is not in {file}")));
            }
        }
        match self.entries.keys().find(|name| !index.weight_map.contains_key(*name)) {
            Some(name) => Err(Error::file(&index.path, format!("weight_map has no entry for tensor {name}"))),
            None => Ok(()),
        }
    }
}

/// `model.safetensors.index.json`.
struct Index {
    path: PathBuf,
    weight_map: BTreeMap<String, String>,
}

impl Index {
    /// Reads the index of a folder, if it has one.
    fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(INDEX);
        let Some(fields) = Fields::read_optional(&path)? else { return Ok(None) };
        let map = fields.section("weight_map")?.ok_or_else(|| fields.error("weight_map", "is missing"))?;
        let mut weight_map = BTreeMap::new();
        for name in map.keys() {
            let file = map.optional_text(name)?.ok_or_else(|| map.error(name, "is null"))?;
            // The index comes from the network: a shard must be a plain file name in this folder.
            if Path::new(file).file_name() != Some(file.as_ref()) {
                return Err(
                    map.error(name, format_args!("is {file:?}; it must be a file name in this folder"))
                );
            }
            weight_map.insert(name.to_owned(), file.to_owned());
        }
        if weight_map.is_empty() {
            return Err(fields.error("weight_map", "names no tensor"));
        }
        Ok(Some(Self { path, weight_map }))
    }

    fn files(&self) -> BTreeSet<&String> {
        self.weight_map.values().collect()
    }
}

/// The names of the weight files of the model in `folder`, whether or not they exist.
pub fn files(folder: &Path) -> Result<Vec<String>> {
    let index = Index::read(folder)?;
    Ok(index.map_or_else(|| vec![SINGLE.to_owned()], |index| index.files().into_iter().cloned().collect()))
}

fn shard_paths(folder: &Path) -> Result<(Vec<PathBuf>, Option<Index>)> {
    let Some(index) = Index::read(folder)? else {
        let single = folder.join(SINGLE);
        if single.is_file() {
            return Ok((vec![single], None));
        }
        return Err(Error::file(folder, format!("{MISSING}{}", others(folder))));
    };
    let paths = index.files().into_iter().map(|file| folder.join(file)).collect();
    Ok((paths, Some(index)))
}

/// A hint that names a weights file in an unsupported format, if the folder has one.
fn others(folder: &Path) -> String {
    let formats = ["gguf", "bin", "pth", "npz"];
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path());
    let other = files
        .filter(|path| path.extension().is_some_and(|end| formats.iter().any(|format| end == *format)))
        .min();
    match other.as_deref().and_then(Path::file_name) {
        Some(name) => format!("; {} is in an unsupported format", name.to_string_lossy()),
        None => String::new(),
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
