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
pub fn resolve(given: &Path) -> Result<PathBuf> {
    if given.is_dir() {
        return Ok(given.to_path_buf());
    }
    match given.to_str().map(str::parse::<ModelName>) {
        Some(Ok(name)) if !given.exists() => Cache::from_env()?.find(&name),
        _ => Err(Error::not_a_model(given)),
    }
}

/// The model name of a snapshot folder in a cache; `None` for any other folder.
pub fn name_of(folder: &Path) -> Option<String> {
    let mut parents = folder.ancestors().skip(1);
    let snapshots = parents.next()?.file_name()?;
    let repo = parents.next()?.file_name()?.to_str()?;
    if snapshots == repo::SNAPSHOTS { repo::name_of_folder(repo) } else { None }
}
