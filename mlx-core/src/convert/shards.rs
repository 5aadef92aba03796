//! The files of a converted checkpoint. The offset of every tensor is known before the first byte is written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::plan::{OutputTensor, Tensor};
use crate::error::{Error, Result};

/// The name of the index file.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// One weights file.
pub(super) struct Shard {
    /// The file name.
    pub(super) name: String,
    pub(super) units: Vec<OutputTensor>,
}

/// Splits `units` into files of at most `limit` bytes of tensors. A larger unit gets a file to itself.
pub(super) fn split(units: Vec<OutputTensor>, limit: u64) -> Vec<Shard> {
    let mut groups: Vec<Vec<OutputTensor>> = Vec::new();
    let mut size = 0;
    for unit in units {
        let bytes = unit.bytes();
        if let Some(group) = groups.last_mut().filter(|_| size + bytes <= limit) {
            group.push(unit);
        } else {
            size = 0;
            groups.push(vec![unit]);
        }
        size += bytes;
    }
    let count = groups.len();
    let name = |index: usize| match count {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
    };
    groups.into_iter().enumerate().map(|(index, units)| Shard { name: name(index), units }).collect()
}

/// Returns the contents of `model.safetensors.index.json` for these files.
pub(super) fn index(shards: &[Shard]) -> Value {
    let mut map = BTreeMap::new();
    let (mut size, mut numbers) = (0, 0);
    for shard in shards {
        for unit in &shard.units {
            (size, numbers) = (size + unit.bytes(), numbers + unit.numbers());
            map.extend(unit.tensors().into_iter().map(|tensor| (tensor.name, shard.name.clone())));
        }
    }
    json!({ "metadata": { "total_size": size, "total_parameters": numbers }, "weight_map": map })
}

/// A file with a complete header. Its tensors can be written in any order.
pub(super) struct ShardFile {
    path: PathBuf,
    file: File,
    /// The file offset of each tensor.
    begins: BTreeMap<String, u64>,
}

impl ShardFile {
    /// Creates the file of `shard` in `folder` at its final size.
    pub(super) fn create(folder: &Path, shard: &Shard) -> Result<Self> {
        let path = folder.join(&shard.name);
        let mut tensors: Vec<Tensor> = shard.units.iter().flat_map(OutputTensor::tensors).collect();
        // Wide types first, so that every tensor is aligned to its width.
        tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.bitsize()));
        let (header, offsets, length) = header(&tensors);
        let data = 8 + header.len() as u64;
        let begins = offsets.into_iter().map(|(name, offset)| (name, data + offset)).collect();
        let create = || -> std::io::Result<File> {
            let mut file = File::create_new(&path)?;
            file.write_all(&(header.len() as u64).to_le_bytes())?;
            file.write_all(&header)?;
            file.set_len(data + length)?;
            Ok(file)
        };
        let file = create().map_err(|error| Error::io(&path, error))?;
        Ok(Self { path, file, begins })
    }

    /// Writes `bytes` of the tensor `name` at byte `offset`.
    pub(super) fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        let begin = self.begins.get(name).copied().unwrap_or_default();
        let seek = self.file.seek(SeekFrom::Start(begin + offset));
        seek.and_then(|_| self.file.write_all(bytes)).map_err(|error| Error::io(&self.path, error))
    }

    /// Syncs the file to disk.
    pub(super) fn finish(self) -> Result<()> {
        self.file.sync_all().map_err(|error| Error::io(&self.path, error))
    }
}

/// Returns the header of a file with these tensors, the offset of each in the data, and the bytes of all.
fn header(tensors: &[Tensor]) -> (Vec<u8>, Vec<(String, u64)>, u64) {
    let mut map = Map::from_iter([("__metadata__".to_owned(), json!({ "format": "mlx" }))]);
    let (mut offsets, mut end) = (Vec::new(), 0);
    for tensor in tensors {
        let begin = end;
        end += tensor.bytes();
        let dtype: Dtype = tensor.dtype;
        let entry = json!({ "dtype": dtype, "shape": tensor.shape, "data_offsets": [begin, end] });
        map.insert(tensor.name.clone(), entry);
        offsets.push((tensor.name.clone(), begin));
    }
    let mut header = Value::Object(map).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    (header, offsets, end)
}
