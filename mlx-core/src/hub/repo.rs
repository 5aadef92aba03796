//! The place of one model in the cache: `models--ORG--NAME` with `blobs` (files by checksum), `snapshots` (a folder of relative links for each
//! commit) and `refs` (the commits of branches and tags). Invariant: a link or a reference is there as a whole or not at all.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::name::ModelName;
use crate::atomic_write::write_atomically;
use crate::error::{Error, Result};

pub(super) const SNAPSHOTS: &str = "snapshots";
const PREFIX: &str = "models--";
/// Commits may be shortened to so many digits.
const SHORTEST: usize = 7;

/// `ORG/NAME` of `models--ORG--NAME`.
pub(super) fn name_of_folder(folder: &str) -> Option<String> {
    let name = folder.strip_prefix(PREFIX)?.replace("--", "/");
    name.parse::<ModelName>().ok().filter(|parsed| parsed.revision.is_none()).map(|parsed| parsed.repo)
}

/// The names of what is in `folder`; none if there is no such folder.
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

/// The place of a model in a cache.
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

    /// Where everything of this model is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the locks are.
    pub(super) fn locks(&self) -> &Path {
        &self.locks
    }

    pub(super) fn blobs(&self) -> PathBuf {
        self.folder.join("blobs")
    }

    /// The content that has this checksum.
    pub fn blob(&self, etag: &str) -> PathBuf {
        self.blobs().join(etag)
    }

    /// The same, before it is whole.
    pub fn partial(&self, etag: &str) -> PathBuf {
        self.blobs().join(format!("{etag}.incomplete"))
    }

    /// The files of a commit.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join(SNAPSHOTS).join(commit)
    }

    pub(super) fn references_folder(&self) -> PathBuf {
        self.folder.join("refs")
    }

    /// All commits of which there are files.
    pub fn commits(&self) -> Result<Vec<String>> {
        let folder = self.folder.join(SNAPSHOTS);
        let mut names = names_in(&folder)?;
        // A Mac leaves a .DS_Store wherever somebody has looked.
        names.retain(|name| folder.join(name).is_dir());
        Ok(names)
    }

    /// The commit that a name means: by its reference, its digits, or because there is no other.
    pub fn commit(&self, name: &ModelName) -> Result<Option<String>> {
        let revision = name.revision();
        let commits = self.commits()?;
        let known = |commit: &String| commits.contains(commit);
        let reference = fs::read_to_string(self.references_folder().join(revision)).ok();
        if let Some(commit) = reference.map(|text| text.trim().to_owned()).filter(known) {
            return Ok(Some(commit));
        }
        let meant = |commit: &&String| match name.revision {
            Some(_) => revision.len() >= SHORTEST && commit.starts_with(revision),
            None => true,
        };
        let mut found = commits.iter().filter(meant);
        Ok(found.next().filter(|_| found.next().is_none()).cloned())
    }

    /// Makes `file` of `commit` the content with this checksum.
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

    /// From now on `revision` means `commit`.
    pub fn write_reference(&self, revision: &str, commit: &str) -> Result<()> {
        let path = self.references_folder().join(revision);
        write_atomically(&path, commit.as_bytes())
    }

    /// Locks the content with this checksum, as the hub's other tools do; calls `wait` first if somebody else has the lock.
    pub fn lock(&self, etag: &str, wait: impl FnOnce()) -> Result<File> {
        let path = self.locks.join(format!("{etag}.lock"));
        let locked = || {
            fs::create_dir_all(&self.locks)?;
            let file = OpenOptions::new().create(true).append(true).open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    wait();
                    file.lock()?;
                }
                // Some network drives have no locks. Checksums still find what two writers at once would spoil.
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
            Ok(file)
        };
        locked().map_err(|error| Error::io(&path, error))
    }
}

/// A name beside `path` that no other process uses.
fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    path.with_file_name(name)
}

/// That something is gone already is no error.
pub(super) fn unless_missing(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
