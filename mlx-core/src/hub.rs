//! Models of the Hugging Face hub by name, as far as they are on this machine: the cache that all tools of the hub share. Invariant: no network;
//! fetching is the front end's.

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

use crate::error::Result;
use crate::folder::not_a_folder;

/// The folder of a model that is given as a folder, or as `ORG/NAME` or `ORG/NAME@REVISION` of the cache. A folder wins.
pub fn resolve(given: &Path) -> Result<PathBuf> {
    if given.is_dir() {
        return Ok(given.to_path_buf());
    }
    match given.to_str().map(str::parse::<ModelName>) {
        Some(Ok(name)) if !given.exists() => Cache::from_env()?.find(&name),
        _ => Err(not_a_folder(given)),
    }
}

/// The name of the model whose revision lies in `folder` of a cache; other folders have none.
pub fn name_of(folder: &Path) -> Option<String> {
    let mut parents = folder.ancestors().skip(1);
    let snapshots = parents.next()?.file_name()?;
    let repo = parents.next()?.file_name()?.to_str()?;
    if snapshots == repo::SNAPSHOTS { repo::name_of_folder(repo) } else { None }
}
