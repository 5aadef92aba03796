//! The files below a folder and their size.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the total size of the files below `folder` in bytes. A file with several links counts once.
pub(crate) fn folder_bytes(folder: &Path) -> u64 {
    let contents: BTreeSet<PathBuf> =
        files(folder).iter().filter_map(|file| file.canonicalize().ok()).collect();
    contents.iter().filter_map(|file| Some(fs::metadata(file).ok()?.len())).sum()
}

/// Returns all files and links below `folder`. Links to folders are not followed.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files(&entry.path())),
            Ok(_) => found.push(entry.path()),
            Err(_) => {}
        }
    }
    found
}
