//! Finds models on this machine by name: in the cache of the Hugging Face Hub, which all Hub tools share, in LM Studio's
//! folder and in Ollama's store. Invariant: no network access; the front end handles downloads.
//!
//! ```no_run
//! # fn main() -> mlx_hub::Result<()> {
//! for model in mlx_hub::Stores::from_env()?.list()? {
//!     println!("{} {} bytes in {}", model.name, model.bytes, model.store);
//! }
//! # Ok(())
//! # }
//! ```

mod cache;
mod contents;
mod env_path;
mod error;
mod folder_files;
mod gguf_files;
mod list;
mod local_model;
mod local_name;
mod model_files;
mod name;
mod ollama_names;
mod remove;
mod repo;
mod stores;

pub use cache::{Cache, Found, home};
pub use env_path::{expanded, path_in};
pub use error::{Error, Result};
pub use folder_files::files;
pub use gguf_files::{GgufModel, choose_gguf, gguf_models, gguf_name, has_gguf_extension};
pub use list::CachedModel;
pub use local_model::{LocalModel, Revision, Store};
pub use local_name::HubName;
pub use model_files::{TOKENIZER, VOCABULARY, affects_output, missing};
pub use name::ModelName;
pub use ollama_names::model_for_ollama;
pub use repo::Repo;
pub use stores::{Stores, name_of};

use std::fs::File;
use std::path::{Path, PathBuf};

/// Resolves a model to its folder or GGUF file. It is given as a path or as a name that [`Stores::find`] finds. An
/// existing path takes precedence over a name. Other paths are expanded like Hub tools do, since no shell expands paths
/// in config files, variables or `NAME=~/FOLDER`.
pub fn resolve(given: &Path) -> Result<PathBuf> {
    let path = existing_or_expanded(given);
    if path.is_dir() {
        return in_folder(&path);
    }
    if path.exists() {
        return expect_gguf(&path).map(|()| path);
    }
    let found = path.to_str().map(|text| Stores::from_env()?.find(text));
    match found.unwrap_or_else(|| Err(Error::not_a_model(&path))) {
        Err(error) if is_missing_file(&path, &error) => Err(Error::file(path, NO_FILE)),
        other => other,
    }
}

/// Returns true if `path`, which no store has, is the path of a GGUF file and not `ORG/NAME/FILE.gguf`.
fn is_missing_file(path: &Path, error: &Error) -> bool {
    let is_existing = |folder: &Path| folder.as_os_str().is_empty() || folder.is_dir();
    let is_name = matches!(error, Error::NotDownloaded { .. }) && !path.parent().is_some_and(is_existing);
    gguf_files::has_gguf_extension(path) && !is_name
}

/// Resolves an adapter, given like a model, to its folder.
pub fn resolve_adapter(given: &Path) -> Result<PathBuf> {
    let path = existing_or_expanded(given);
    if !path.is_dir() {
        return resolve(given);
    }
    if path.join(ADAPTER).exists() { Ok(path) } else { Err(Error::file(path, NO_ADAPTER)) }
}

/// Returns an existing path unchanged, and any other path expanded.
fn existing_or_expanded(given: &Path) -> PathBuf {
    if given.exists() { given.to_path_buf() } else { expanded(given) }
}

/// Returns the model to open in a folder: the folder itself, or a GGUF file in it.
fn in_folder(folder: &Path) -> Result<PathBuf> {
    match contents::choose(folder, None) {
        Ok(content) if content.is_file() && content.missing.is_empty() => Ok(content.path),
        Ok(content) if content.is_file() => Err(Error::file(
            folder,
            format!("has no {}; is the download complete?", content.missing.join(", ")),
        )),
        _ if folder.join("config.json").exists() => Ok(folder.to_path_buf()),
        _ if folder.join(ADAPTER).exists() => Err(Error::file(folder, IS_ADAPTER)),
        _ => Err(Error::file(folder, NO_CONFIG)),
    }
}

/// Fails if an existing file is not a model in the GGUF format. Blobs of Ollama have no suffix, so the content decides.
fn expect_gguf(file: &Path) -> Result<()> {
    File::open(file).map_err(|source| Error::io(file, source))?;
    match (mlx_gguf::is_gguf(file), gguf_files::has_gguf_extension(file)) {
        (true, _) if gguf_files::is_auxiliary(file) => Err(Error::file(file, AUXILIARY)),
        (true, _) => Ok(()),
        (false, true) => Err(Error::file(file, NOT_GGUF)),
        (false, false) => Err(Error::not_a_model(file)),
    }
}

const NOT_GGUF: &str = "is not a GGUF file: it does not begin with the bytes GGUF; is the download complete?";
const NO_FILE: &str = "does not exist; a GGUF file is given by its path, or as ORG/NAME:QUANTIZATION";
const AUXILIARY: &str =
    "is a vision tower (mmproj) or calibration data (imatrix), not a model; give the file of the model";
/// The config file of an adapter.
const ADAPTER: &str = "adapter_config.json";
const NO_ADAPTER: &str = "has no adapter_config.json; an adapter's folder holds adapter_config.json and adapters.safetensors (mlx-lm) or adapter_model.safetensors (PEFT)";
const IS_ADAPTER: &str =
    "is an adapter; name the model that it was trained for, and give this folder with --adapter";
const NO_CONFIG: &str = "has no config.json and no GGUF file; a model folder holds config.json, tokenizer.json and .safetensors files, or GGUF files";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_an_adapter_is_expanded() {
        let why =
            resolve_adapter(Path::new("$CARGO_MANIFEST_DIR/src")).expect_err("it is no adapter").to_string();
        assert!(why.contains(NO_ADAPTER) && !why.contains('$'), "{why}");
    }

    #[test]
    fn an_existing_path_is_a_folder_or_a_gguf_file() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let at = |path: &str| root.path().join(path);
        for (file, text) in [
            ("plain/config.json", "{}"),
            ("plain/mmproj-m.gguf", "GGUF"),
            ("gguf/config.json", "{}"),
            ("gguf/m-Q8_0.gguf", "GGUF"),
            ("gguf/m-Q4_K_M.gguf", "GGUF"),
            ("half/m-Q8_0-00001-of-00002.gguf", "GGUF"),
            ("tower/mmproj-m.gguf", "GGUF"),
            ("adapter/adapter_config.json", "{}"),
            ("blobs/sha256-11", "GGUF and more"),
            ("pointer.gguf", "version https://git-lfs.github.com/spec/v1"),
            ("short.gguf", "GG"),
            ("note.txt", "hello"),
        ] {
            std::fs::create_dir_all(at(file).parent().expect("a folder")).expect("writes");
            std::fs::write(at(file), text).expect("writes");
        }
        for (given, expected) in [
            ("plain", "plain"),
            ("gguf", "gguf/m-Q4_K_M.gguf"),
            ("gguf/m-Q8_0.gguf", "gguf/m-Q8_0.gguf"),
            ("blobs/sha256-11", "blobs/sha256-11"),
        ] {
            assert_eq!(resolve(&at(given)).expect(given), at(expected));
        }
        for (given, words) in [
            ("half", "m-Q8_0-00002-of-00002.gguf"),
            ("tower", NO_CONFIG),
            ("tower/mmproj-m.gguf", AUXILIARY),
            ("adapter", IS_ADAPTER),
            ("pointer.gguf", NOT_GGUF),
            ("short.gguf", NOT_GGUF),
            ("note.txt", "is not a model"),
            ("none.gguf", NO_FILE),
            ("none/m.gguf", NO_FILE),
        ] {
            let message = resolve(&at(given)).expect_err(given).to_string();
            assert!(message.contains(words), "{given}: {message}");
        }
    }
}
