//! The models in one folder: the folder itself with its safetensors, or GGUF files in it.

use std::path::{Path, PathBuf};

use super::folder_files::folder_bytes;
use super::gguf_files;
use super::local_model::Store;
use super::model_files;
use crate::error::{Error, Result};

/// A model in a folder.
#[derive(Debug)]
pub(crate) struct Content {
    /// The quantization of a GGUF file; `None` for the folder itself.
    pub label: Option<String>,
    /// The folder, or the GGUF file.
    pub path: PathBuf,
    /// The GGUF files; empty for the folder itself.
    pub files: Vec<PathBuf>,
    /// The total size of the files in bytes.
    pub bytes: u64,
    /// Missing files that the model needs.
    pub missing: Vec<String>,
}

/// Returns the models in `folder`. The folder itself is one if it is complete or has no GGUF files.
pub(crate) fn models(folder: &Path) -> Vec<Content> {
    let mut found: Vec<Content> = gguf_files::models(folder).iter().map(of_file).collect();
    // An unreadable index is reported when the model is loaded.
    let missing = model_files::missing(folder).unwrap_or_default();
    if missing.is_empty() || found.is_empty() {
        found.insert(0, of_folder(folder, missing));
    }
    found
}

/// Returns the model to open in `folder`: the GGUF file with this name or quantization, or the default. Fails with the
/// existing quantizations.
pub(crate) fn choose(folder: &Path, file: Option<&str>) -> Result<Content, Vec<String>> {
    let gguf = gguf_files::models(folder);
    let missing = model_files::missing(folder).unwrap_or_default();
    if file.is_none() && (missing.is_empty() || gguf.is_empty()) {
        return Ok(of_folder(folder, missing));
    }
    gguf_files::choose_gguf(&gguf, file).map(of_file)
}

impl Content {
    /// Returns true for a GGUF file.
    pub(crate) fn is_file(&self) -> bool {
        self.label.is_some()
    }

    /// Returns the model's name in a folder with this name: `ORG/NAME:QUANTIZATION` for a GGUF file.
    pub(crate) fn name_in(&self, folder: &str) -> String {
        self.label.as_ref().map_or_else(|| folder.to_owned(), |label| format!("{folder}:{label}"))
    }
}

fn of_folder(folder: &Path, missing: Vec<String>) -> Content {
    Content {
        label: None,
        path: folder.to_path_buf(),
        files: Vec::new(),
        bytes: folder_bytes(folder),
        missing,
    }
}

fn of_file(model: &gguf_files::GgufModel) -> Content {
    Content {
        label: Some(model.label.clone()),
        path: model.path.clone(),
        files: model.files.clone(),
        bytes: model.bytes,
        missing: model.missing.clone(),
    }
}

/// Returns the model to open in its folder in a store.
pub(crate) fn chosen(
    name: &impl ToString,
    file: Option<&str>,
    folder: &Path,
    store: Store,
) -> Result<Content> {
    let content = choose(folder, file).map_err(|labels| {
        let others = if labels.is_empty() { "no GGUF file".to_owned() } else { labels.join(", ") };
        let file = file.unwrap_or_default();
        Error::not_downloaded(name, format!("{file:?} is not in {}, which has {others}", store.place()))
    })?;
    if content.missing.is_empty() {
        return Ok(content);
    }
    let message = format!("is incomplete in {}: {} is missing", store.place(), content.missing.join(", "));
    Err(Error::not_downloaded(name, message))
}
