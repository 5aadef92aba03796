//! Models of the Hugging Face Hub that are in the local cache, by name. All Hub tools share this cache. Invariant: no network access;
//! downloads belong to the front end.

mod cache;
mod list;
mod name;
mod remove;
mod repo;
mod required_files;

pub use cache::{Cache, home};
pub use list::{CachedModel, files};
pub use name::ModelName;
pub use repo::Repo;
pub use required_files::{described, missing};

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Resolves a model, given as a folder or as `ORG/NAME[@REVISION]`, to its folder. An existing folder takes precedence over a name.
/// The folder of an adapter is taken, too.
pub fn resolve(given: &Path) -> Result<PathBuf> {
    if given.is_dir() {
        let describes = |file| given.join(file).exists();
        let is_model = describes("config.json") || describes("adapter_config.json");
        return if is_model {
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

/// Why a folder without the file that describes a model cannot be used.
fn without_config(folder: &Path) -> &'static str {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    if files.map(|file| file.path()).any(|file| is_gguf(&file)) { GGUF } else { NO_CONFIG }
}

fn is_gguf(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

const GGUF: &str =
    "GGUF is not supported; look for the same model in safetensors, for example in mlx-community";
const NO_CONFIG: &str =
    "has no config.json; a model folder holds config.json, tokenizer.json and .safetensors files";

/// The model name of a snapshot folder in a cache; `None` for any other folder.
pub fn name_of(folder: &Path) -> Option<String> {
    let mut parents = folder.ancestors().skip(1);
    let snapshots = parents.next()?.file_name()?;
    let repo = parents.next()?.file_name()?.to_str()?;
    if snapshots == repo::SNAPSHOTS { repo::name_of_folder(repo) } else { None }
}
