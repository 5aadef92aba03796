//! The weight files of a model folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::{Fields, object};
use mlx_gguf::{Error, Result};

/// The index file that maps each tensor to its shard.
pub const INDEX: &str = "model.safetensors.index.json";
/// The weights file of a model with only one.
pub const SINGLE: &str = "model.safetensors";
/// The names of a single weights file. Those after the first are of conversions for MLX. The first one that exists is read.
pub const SINGLES: [&str; 3] = [SINGLE, "weights.safetensors", "weights.npz"];

const MISSING: &str =
    "has no model.safetensors and no model.safetensors.index.json, nor weights.safetensors or weights.npz";

/// `model.safetensors.index.json`.
pub struct Index {
    /// Its path.
    pub path: PathBuf,
    /// The file of each tensor.
    pub weight_map: BTreeMap<String, String>,
}

impl Index {
    /// Reads the index of a folder, if it has one.
    fn read(folder: &Path) -> Result<Option<Self>> {
        Fields::read_optional(&folder.join(INDEX))?.as_ref().map(Self::of).transpose()
    }

    fn of(fields: &Fields) -> Result<Self> {
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
        Ok(Self { path: fields.path().to_path_buf(), weight_map })
    }

    fn files(&self) -> BTreeSet<&String> {
        self.weight_map.values().collect()
    }

    /// Returns true if `folder` has the single file and none of the index's files, which were merged into it.
    fn is_merged_in(&self, folder: &Path) -> bool {
        folder.join(SINGLE).is_file() && self.files().into_iter().all(|file| !folder.join(file).is_file())
    }
}

/// Returns the names of the weight files of the model in `folder`, even if they do not exist.
pub fn files(folder: &Path) -> Result<Vec<String>> {
    if let Some(index) = Index::read(folder)?.filter(|index| !index.is_merged_in(folder)) {
        return Ok(index.files().into_iter().cloned().collect());
    }
    if let Some(single) = single(folder) {
        return Ok(vec![single.to_owned()]);
    }
    let numbered = numbered(folder)?;
    Ok(if numbered.is_empty() { vec![SINGLE.to_owned()] } else { numbered })
}

/// Returns the name of the single weights file in `folder`, if it has one.
fn single(folder: &Path) -> Option<&'static str> {
    SINGLES.into_iter().find(|name| folder.join(name).is_file())
}

/// Returns the names of the weight files in the JSON of an index.
pub fn files_of_index(text: &str) -> Result<Vec<String>> {
    let path = Path::new(INDEX);
    let index = Index::of(&Fields::of(path, object(path, text.as_bytes())?))?;
    Ok(index.files().into_iter().cloned().collect())
}

/// Returns the paths of the weight files of the model in `folder`, and its index. Files that do not exist are
/// skipped.
pub fn shard_paths(folder: &Path) -> Result<(Vec<PathBuf>, Option<Index>)> {
    if let Some(index) = Index::read(folder)?.filter(|index| !index.is_merged_in(folder)) {
        let paths = index.files().into_iter().map(|file| folder.join(file));
        let paths: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
        if !paths.is_empty() {
            return Ok((paths, Some(index)));
        }
        let first = index.files().into_iter().next().map_or("", String::as_str);
        let message = format!("names {first}, but none of its files exists");
        return Err(Error::file(&index.path, message));
    }
    if let Some(single) = single(folder) {
        return Ok((vec![folder.join(single)], None));
    }
    let numbered = numbered(folder)?;
    if numbered.is_empty() {
        return Err(Error::file(folder, format!("{MISSING}{}", others(folder))));
    }
    Ok((numbered.into_iter().map(|file| folder.join(file)).collect(), None))
}

/// Returns the numbered files of a folder without an index, such as `model-00001-of-00002.safetensors`.
fn numbered(folder: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).map_err(|source| Error::io(folder, source))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    numbered_among(names).map_err(|message| Error::file(folder, message))
}

/// Returns the names of numbered files, sorted. Fails with the reason if one is missing or two sets are mixed.
pub fn numbered_among(names: impl IntoIterator<Item = String>) -> Result<Vec<String>, String> {
    let numbered = |name: String| count_in(&name).map(|(index, count)| (name, index, count));
    let mut counted: Vec<(String, usize, usize)> = names.into_iter().filter_map(numbered).collect();
    counted.sort();
    let Some((first, _, count)) = counted.first().cloned() else { return Ok(Vec::new()) };
    if let Some(absent) = (1..=count).find(|index| !counted.iter().any(|it| (it.1, it.2) == (*index, count)))
    {
        return Err(format!("has {first}, but not file {absent} of {count}; is the download complete?"));
    }
    if let Some((other, ..)) = counted.iter().find(|it| it.2 != count || stem(&it.0) != stem(&first)) {
        return Err(format!("has two sets of weight files, {first} and {other}; add {INDEX} to select one"));
    }
    Ok(counted.into_iter().map(|(name, ..)| name).collect())
}

/// Returns the name of a numbered file without its numbers.
fn stem(name: &str) -> &str {
    name.rsplit_once("-of-").and_then(|(start, _)| start.rsplit_once('-')).map_or(name, |(stem, _)| stem)
}

/// Returns the number of a weights file and the count of all, if its name has them.
fn count_in(name: &str) -> Option<(usize, usize)> {
    let (start, count) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (_, index) = start.rsplit_once('-')?;
    Some((index.parse().ok()?, count.parse().ok()?))
}

/// Returns a hint about a weights file in an unsupported format, if the folder has one.
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
