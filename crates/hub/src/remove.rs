//! Removes models from the cache. Invariant: links are removed, never followed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;

use super::cache::Cache;
use super::folder_files::files;
use super::list::{contents, references};
use super::name::ModelName;
use super::repo::{Repo, names_in, unless_missing};
use crate::error::{Error, Result};

impl Cache {
    /// Removes a model, or only the given revision, and returns the number of bytes freed.
    pub fn remove(&self, name: &ModelName) -> Result<u64> {
        let repo = self.repo(name);
        let Ok(metadata) = fs::symlink_metadata(repo.folder()) else { return Err(absent(name)) };
        if !metadata.is_dir() {
            return Err(Error::file(
                repo.folder(),
                "is a symbolic link and is not followed; remove it by hand",
            ));
        }
        let _locks = lock_all(&repo)?;
        if name.revision.is_none() {
            return remove_all(&repo);
        }
        let commit = repo.commit(name)?.ok_or_else(|| absent(name))?;
        if repo.commits()? == [commit.as_str()] { remove_all(&repo) } else { remove_commit(&repo, &commit) }
    }
}

fn absent(name: &ModelName) -> Error {
    Error::not_downloaded(name, "is not in the cache")
}

/// Acquires every lock of the model, so that no other process downloads it at the same time.
fn lock_all(repo: &Repo) -> Result<Vec<File>> {
    let mut held = Vec::new();
    for name in names_in(repo.locks())? {
        let path = repo.locks().join(name);
        let Ok(file) = File::open(&path) else { continue };
        if matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)) {
            return Err(Error::hub(repo.name(), "another program is downloading this model; stop it first"));
        }
        held.push(file);
    }
    Ok(held)
}

fn remove_all(repo: &Repo) -> Result<u64> {
    let bytes = files(repo.folder()).iter().map(|file| own_bytes(file)).sum();
    fs::remove_dir_all(repo.folder()).map_err(|error| Error::io(repo.folder(), error))?;
    Ok(bytes)
}

fn remove_commit(repo: &Repo, commit: &str) -> Result<u64> {
    let folder = repo.snapshot(commit);
    let own = contents(repo, commit);
    fs::remove_dir_all(&folder).map_err(|error| Error::io(&folder, error))?;
    for (name, _) in references(repo).into_iter().filter(|(_, target)| target == commit) {
        let path = repo.references_folder().join(name);
        fs::remove_file(&path).map_err(|error| Error::io(&path, error))?;
    }
    let mut others = BTreeSet::new();
    for other in repo.commits()? {
        others.extend(contents(repo, &other));
    }
    let mut bytes = 0;
    for etag in names_in(&repo.blobs())?.iter().filter(|etag| own.contains(*etag) && !others.contains(*etag))
    {
        let blob = repo.blob(etag);
        bytes += own_bytes(&blob);
        fs::remove_file(&blob).or_else(unless_missing).map_err(|error| Error::io(&blob, error))?;
    }
    Ok(bytes)
}

/// Returns the size of a regular file; 0 for a link, since its target is not removed.
fn own_bytes(path: &Path) -> u64 {
    fs::symlink_metadata(path).map_or(0, |metadata| if metadata.is_file() { metadata.len() } else { 0 })
}
