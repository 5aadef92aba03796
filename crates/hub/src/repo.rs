//! One model in the cache: `models--ORG--NAME` with `blobs` (files named by checksum), `snapshots` (a folder of
//! relative links for each commit) and `refs` (the commits of branches and tags). Invariant: links and references are
//! written atomically.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use mlx_files::write_atomically;

use super::name::ModelName;
use crate::error::{Error, Result};

/// The time between two attempts to get a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(100);
const SNAPSHOTS: &str = "snapshots";
const PREFIX: &str = "models--";
/// The minimum length of an abbreviated commit.
const MIN_COMMIT_DIGITS: usize = 7;

/// Returns `ORG/NAME` from `models--ORG--NAME`.
pub(super) fn name_of_folder(folder: &str) -> Option<String> {
    let name = folder.strip_prefix(PREFIX)?.replace("--", "/");
    name.parse::<ModelName>().ok().filter(|parsed| parsed.revision.is_none()).map(|parsed| parsed.repo)
}

/// Returns the model name of a snapshot folder in a cache; `None` for any other folder.
pub(super) fn name_of_snapshot(folder: &Path) -> Option<String> {
    let mut parents = folder.ancestors().skip(1);
    let snapshots = parents.next()?.file_name()?;
    let repo = parents.next()?.file_name()?.to_str()?;
    if snapshots == SNAPSHOTS { name_of_folder(repo) } else { None }
}

/// Returns the sorted names of the entries of `folder`; empty if it does not exist.
pub(super) fn names_in(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(folder, error)),
    };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    Ok(names)
}

/// One model in a cache.
#[derive(Debug, Clone)]
pub struct Repo {
    name: String,
    folder: PathBuf,
    locks: PathBuf,
}

impl Repo {
    pub(super) fn new(root: &Path, name: &str) -> Self {
        let own = format!("{PREFIX}{}", name.replace('/', "--"));
        Self { name: name.to_owned(), folder: root.join(&own), locks: root.join(".locks").join(own) }
    }

    /// `ORG/NAME`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder of this model.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of its lock files.
    pub(super) fn locks(&self) -> &Path {
        &self.locks
    }

    pub(super) fn blobs(&self) -> PathBuf {
        self.folder.join("blobs")
    }

    /// Returns the path of the file with this checksum.
    pub fn blob(&self, etag: &str) -> PathBuf {
        self.blobs().join(etag)
    }

    /// Returns the path of the partial download of the file with this checksum.
    pub fn partial(&self, etag: &str) -> PathBuf {
        self.blobs().join(format!("{etag}.incomplete"))
    }

    /// Returns the snapshot folder of a commit.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join(SNAPSHOTS).join(commit)
    }

    pub(super) fn references_folder(&self) -> PathBuf {
        self.folder.join("refs")
    }

    /// Returns all commits that have a snapshot.
    pub fn commits(&self) -> Result<Vec<String>> {
        let folder = self.folder.join(SNAPSHOTS);
        let mut names = names_in(&folder)?;
        // macOS's Finder creates .DS_Store files in folders that it displays.
        names.retain(|name| folder.join(name).is_dir());
        Ok(names)
    }

    /// Resolves a name to a commit: by reference, by commit prefix, or, without a revision, as the only commit in the
    /// cache.
    pub fn commit(&self, name: &ModelName) -> Result<Option<String>> {
        let revision = name.revision();
        let commits = self.commits()?;
        let exists = |commit: &String| commits.contains(commit);
        let reference = fs::read_to_string(self.references_folder().join(revision)).ok();
        if let Some(commit) = reference.map(|text| text.trim().to_owned()).filter(exists) {
            return Ok(Some(commit));
        }
        let matches = |commit: &&String| match name.revision {
            Some(_) => revision.len() >= MIN_COMMIT_DIGITS && commit.starts_with(revision),
            None => true,
        };
        let mut found = commits.iter().filter(matches);
        Ok(found.next().filter(|_| found.next().is_none()).cloned())
    }

    /// Links `file` of `commit` to the blob with this checksum.
    pub fn link(&self, commit: &str, file: &str, etag: &str) -> Result<()> {
        let link = self.snapshot(commit).join(file);
        let up = "../".repeat(2 + file.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        if fs::read_link(&link).is_ok_and(|old| old == target) {
            return Ok(());
        }
        let folder = link.parent().unwrap_or(&self.folder);
        let temporary = temporary(&link);
        let made = || {
            fs::create_dir_all(folder)?;
            fs::remove_file(&temporary).or_else(unless_missing)?;
            std::os::unix::fs::symlink(&target, &temporary)?;
            fs::rename(&temporary, &link)
        };
        made().map_err(|error| Error::io(&link, error))
    }

    /// Points `revision` to `commit`.
    pub fn write_reference(&self, revision: &str, commit: &str) -> Result<()> {
        let path = self.references_folder().join(revision);
        Ok(write_atomically(&path, commit.as_bytes())?)
    }

    /// Locks the blob with this checksum, like the other Hub tools do. While another process holds the lock, calls `wait`
    /// repeatedly; its error ends the wait.
    pub fn lock(&self, etag: &str, mut wait: impl FnMut() -> Result<()>) -> Result<File> {
        let path = self.locks.join(format!("{etag}.lock"));
        let open = || {
            fs::create_dir_all(&self.locks)?;
            OpenOptions::new().create(true).append(true).open(&path)
        };
        let file = open().map_err(|error| Error::io(&path, error))?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => {
                    wait()?;
                    sleep(LOCK_PAUSE);
                }
                // Some network drives do not support locks. The checksum still detects a file that was damaged by two
                // concurrent writers.
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => return Ok(file),
                Err(TryLockError::Error(error)) => return Err(Error::io(&path, error)),
            }
        }
    }
}

/// Returns a temporary name in the same folder, unique to this process.
fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    path.with_file_name(name)
}

/// Ignores the error for removing a file that does not exist.
pub(super) fn unless_missing(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
