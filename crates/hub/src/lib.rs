//! Finds models of the Hugging Face Hub by name in the local cache, which all Hub tools share. Invariant: no network
//! access; the front end handles downloads.
//!
//! ```no_run
//! # fn main() -> mlx_hub::Result<()> {
//! for model in mlx_hub::Cache::from_env()?.list()? {
//!     println!("{} {} bytes", model.name, model.bytes);
//! }
//! # Ok(())
//! # }
//! ```

mod cache;
mod env_path;
mod error;
mod list;
mod model_files;
mod name;
mod remove;
mod repo;

pub use cache::{Cache, home};
pub use env_path::{expanded, path_in};
pub use error::{Error, Result};
pub use list::{CachedModel, files};
pub use model_files::{affects_output, missing};
pub use name::ModelName;
pub use repo::Repo;

use std::path::{Path, PathBuf};

/// Resolves a model, given as a folder or as `ORG/NAME[@REVISION]`, to its folder. An existing folder takes precedence
/// over a name. Other paths are expanded like Hub tools do, since no shell expands paths in config files, variables or
/// `NAME=~/FOLDER`.
pub fn resolve(given: &Path) -> Result<PathBuf> {
    let path = existing_or_expanded(given);
    let given = path.as_path();
    if given.is_dir() {
        return if given.join("config.json").exists() {
            Ok(given.to_path_buf())
        } else {
            Err(Error::file(given, without_config(given)))
        };
    }
    match given.to_str().map(str::parse::<ModelName>) {
        _ if is_gguf(given) => Err(Error::file(given, GGUF)),
        Some(Ok(name)) if !given.exists() => Cache::from_env()?.find(&name),
        _ => Err(Error::not_a_model(given)),
    }
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

/// Returns the reason why a folder without config.json cannot be used.
fn without_config(folder: &Path) -> &'static str {
    if folder.join(ADAPTER).exists() {
        return IS_ADAPTER;
    }
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    if files.map(|file| file.path()).any(|file| is_gguf(&file)) { GGUF } else { NO_CONFIG }
}

fn is_gguf(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

const GGUF: &str =
    "GGUF is not supported; look for the same model in safetensors, for example in mlx-community";
/// The config file of an adapter.
const ADAPTER: &str = "adapter_config.json";
const NO_ADAPTER: &str = "has no adapter_config.json; an adapter's folder holds adapter_config.json and adapters.safetensors (mlx-lm) or adapter_model.safetensors (PEFT)";
const IS_ADAPTER: &str =
    "is an adapter; name the model that it was trained for, and give this folder with --adapter";
const NO_CONFIG: &str =
    "has no config.json; a model folder holds config.json, tokenizer.json and .safetensors files";

/// Returns the model name of a snapshot folder in a cache; `None` for any other folder.
pub fn name_of(folder: &Path) -> Option<String> {
    let mut parents = folder.ancestors().skip(1);
    let snapshots = parents.next()?.file_name()?;
    let repo = parents.next()?.file_name()?.to_str()?;
    if snapshots == repo::SNAPSHOTS { repo::name_of_folder(repo) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_an_adapter_is_expanded() {
        let why =
            resolve_adapter(Path::new("$CARGO_MANIFEST_DIR/src")).expect_err("it is no adapter").to_string();
        assert!(why.contains(NO_ADAPTER) && !why.contains('$'), "{why}");
    }
}
