//! Which files of a folder have its tensors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::config::Fields;
use crate::error::{Error, Result};

/// The index file that maps each tensor to its shard.
pub const INDEX: &str = "model.safetensors.index.json";
/// The weights file of a model without shards.
pub(super) const SINGLE: &str = "model.safetensors";

const MISSING: &str =
    "has no model.safetensors and no model.safetensors.index.json; only safetensors weights are read";

/// `model.safetensors.index.json`.
pub(super) struct Index {
    pub(super) path: PathBuf,
    pub(super) weight_map: BTreeMap<String, String>,
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

pub(super) fn shard_paths(folder: &Path) -> Result<(Vec<PathBuf>, Option<Index>)> {
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
