//! Reads the safetensors files of a model folder, one tensor at a time, checking every claim they make.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use mlx_rs::{Array, Dtype};
use safetensors::tensor::{Metadata, TensorInfo};
use xxhash_rust::xxh3::Xxh3;

use crate::array::{self, FloatPolicy};
use crate::config::Fields;
use crate::error::{Error, Result};

/// A header larger than this is refused before it is read (the format's own limit is 100 MB).
const LARGEST_HEADER: u64 = 100 << 20;

/// Where one tensor lies.
#[derive(Debug, Clone)]
struct Entry {
    file: usize,
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    start: u64,
    length: usize,
}

struct Shard {
    path: PathBuf,
    file: File,
}

/// Called with the bytes read so far and the bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// The tensors of a folder that nobody has taken yet.
pub struct Weights<'a> {
    shards: Vec<Shard>,
    entries: BTreeMap<String, Entry>,
    renamed: Vec<(&'static str, &'static str)>,
    dtype: Dtype,
    total: u64,
    read: u64,
    parameters: u64,
    /// Of every tensor that was taken.
    hash: Xxh3,
    progress: Progress<'a>,
}

impl<'a> Weights<'a> {
    /// Opens `model.safetensors`, or the shards that `model.safetensors.index.json` names. Reads headers only.
    pub fn open(folder: &Path, policy: FloatPolicy, progress: Progress<'a>) -> Result<Self> {
        let (paths, index) = shard_paths(folder)?;
        let mut weights = Self {
            shards: Vec::new(),
            entries: BTreeMap::new(),
            renamed: Vec::new(),
            dtype: Dtype::Float32,
            total: 0,
            read: 0,
            parameters: 0,
            hash: Xxh3::new(),
            progress,
        };
        for path in paths {
            weights.add_shard(path)?;
        }
        if let Some(index) = index {
            weights.check_index(&index)?;
        }
        weights.total = weights.entries.values().map(|entry| entry.length as u64).sum();
        if policy == FloatPolicy::Checkpoint {
            weights.dtype = weights.most_used_float();
        }
        Ok(weights)
    }

    /// The float type that every tensor is handed out in.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// How many bytes the tensors take in the files.
    pub fn file_bytes(&self) -> u64 {
        self.total
    }

    /// How many parameters have been taken so far.
    pub fn parameters(&self) -> u64 {
        self.parameters
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

    /// A hash of the tensors that have been taken so far, and of what else makes the model.
    pub fn fingerprint(&self, config: &str) -> u128 {
        let mut hash = self.hash.clone();
        hash.update(config.as_bytes());
        hash.digest128()
    }

    /// Whether a tensor called `name` is still there.
    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(&self.in_files(name))
    }

    /// The shape of the tensor called `name`, if it is still there.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entries.get(&self.in_files(name)).map(|entry| entry.shape.as_slice())
    }

    /// Takes the tensor `name`, which must have exactly `shape`, as an array of [`Weights::dtype`].
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Array> {
        let name = &self.in_files(name);
        let entry = self.entries.remove(name).ok_or_else(|| {
            Error::file(self.folder_file(), format!("tensor {name} is missing, expected shape {shape:?}"))
        })?;
        let shard = &mut self.shards[entry.file];
        let fail = |message: String| Error::file(&shard.path, message);
        if entry.shape != shape {
            let message =
                format!("tensor {name} has shape {:?}, config.json asks for {shape:?}", entry.shape);
            return Err(fail(message));
        }
        let dtype = array::float_dtype(entry.dtype).ok_or_else(|| {
            fail(format!("tensor {name} has type {:?}; supported are F32, F16 and BF16", entry.dtype))
        })?;
        if entry.shape.iter().product::<usize>() > i32::MAX as usize {
            return Err(fail(format!("tensor {name} has more than 2147483647 elements")));
        }
        let mut bytes = vec![0; entry.length];
        shard
            .file
            .seek(SeekFrom::Start(entry.start))
            .and_then(|_| shard.file.read_exact(&mut bytes))
            .map_err(|source| Error::io(&shard.path, source))?;
        self.hash.update(name.as_bytes());
        self.hash.update(&bytes);
        let dimensions: Vec<i32> = shape.iter().map(|&size| size as i32).collect();
        let array = array::from_bytes(&bytes, dtype, &dimensions)?.as_dtype(self.dtype)?;
        array.eval()?;
        self.read += entry.length as u64;
        self.parameters += shape.iter().product::<usize>() as u64;
        (self.progress)(self.read, self.total);
        Ok(array)
    }

    /// Drops a tensor that this decoder has no use for, if it is there.
    pub fn skip(&mut self, name: &str) {
        self.entries.remove(&self.in_files(name));
    }

    /// Drops the tensors whose names in the files begin with one of `prefixes`.
    pub fn skip_under(&mut self, prefixes: &[&str]) {
        self.entries.retain(|name, _| !prefixes.iter().any(|prefix| name.starts_with(prefix)));
    }

    /// Ends the reading: a tensor that nothing has taken is an error, since the model would not be the
    /// one that was saved.
    pub fn finish(self) -> Result<()> {
        let Some((name, entry)) = self.entries.iter().next() else { return Ok(()) };
        let names: Vec<&str> = self.entries.keys().take(8).map(String::as_str).collect();
        let more = self.entries.len().saturating_sub(names.len());
        let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
        tracing::debug!(first = name, "unused tensors");
        Err(Error::file(
            &self.shards[entry.file].path,
            format!("tensors that config.json has no place for: {}{tail}", names.join(", ")),
        ))
    }

    fn folder_file(&self) -> PathBuf {
        match self.shards.as_slice() {
            [only] => only.path.clone(),
            shards => shards
                .first()
                .and_then(|shard| shard.path.parent())
                .map(|folder| folder.join("model.safetensors.index.json"))
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
                return Err(Error::file(&path, format!("tensor {name} is in another shard too")));
            }
        }
        self.shards.push(Shard { path, file });
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

    fn most_used_float(&self) -> Dtype {
        let bytes_of = |dtype| -> usize {
            let same = self.entries.values().filter(|entry| array::float_dtype(entry.dtype) == Some(dtype));
            same.map(|entry| entry.length).sum()
        };
        let candidates = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];
        candidates.into_iter().max_by_key(|&dtype| bytes_of(dtype)).unwrap_or(Dtype::Float32)
    }
}

/// `model.safetensors.index.json`.
struct Index {
    path: PathBuf,
    weight_map: BTreeMap<String, String>,
}

fn shard_paths(folder: &Path) -> Result<(Vec<PathBuf>, Option<Index>)> {
    let index_path = folder.join("model.safetensors.index.json");
    let single = folder.join("model.safetensors");
    let Some(fields) = Fields::read_optional(&index_path)? else {
        if single.is_file() {
            return Ok((vec![single], None));
        }
        return Err(Error::file(
            folder,
            "has no model.safetensors and no model.safetensors.index.json; only safetensors weights are read",
        ));
    };
    let map = fields.section("weight_map")?.ok_or_else(|| fields.error("weight_map", "is missing"))?;
    let mut weight_map = BTreeMap::new();
    for name in map.keys() {
        let file = map.optional_text(name)?.ok_or_else(|| map.error(name, "is null"))?;
        // The index comes from the network: a shard is a plain file name in this folder, nothing else.
        if Path::new(file).file_name() != Some(file.as_ref()) {
            return Err(map.error(name, format_args!("is {file:?}; it must be a file name in this folder")));
        }
        weight_map.insert(name.to_owned(), file.to_owned());
    }
    if weight_map.is_empty() {
        return Err(fields.error("weight_map", "names no tensor"));
    }
    let files: BTreeSet<&String> = weight_map.values().collect();
    let paths = files.into_iter().map(|file| folder.join(file)).collect();
    Ok((paths, Some(Index { path: index_path, weight_map })))
}

/// The length of the header with its prefix, and the tensors with `start` relative to the data.
fn read_header(path: &Path, file: &mut File) -> Result<(u64, Vec<(String, Entry)>)> {
    let fail = |message: String| Error::file(path, message);
    let size = file.metadata().map_err(|source| Error::io(path, source))?.len();
    let mut prefix = [0; 8];
    file.read_exact(&mut prefix).map_err(|_| fail(format!("{size} bytes is too short for safetensors")))?;
    let length = u64::from_le_bytes(prefix);
    if length > LARGEST_HEADER || length + 8 > size {
        return Err(fail(format!("the header claims {length} bytes, the file has {size}; is it complete?")));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(|source| Error::io(path, source))?;
    // Reading the metadata checks that the tensors lie side by side and that shapes fit their byte ranges.
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| fail(format!("bad header: {error}")))?;
    let (claimed, present) = (metadata.data_len() as u64, size - 8 - length);
    if claimed != present {
        return Err(fail(format!(
            "has {present} bytes of tensors, its header says {claimed}; is it complete?"
        )));
    }
    let entry = |info: &TensorInfo| Entry {
        file: 0,
        dtype: info.dtype,
        shape: info.shape.clone(),
        start: info.data_offsets.0 as u64,
        length: info.data_offsets.1 - info.data_offsets.0,
    };
    let entries = metadata.tensors().into_iter().map(|(name, info)| (name, entry(info))).collect();
    Ok((8 + length, entries))
}
