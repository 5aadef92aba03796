//! A folder of blocks that several programs may share. Invariant: a file with a final name is complete. A crash leaves at most a
//! temporary file, which is removed later.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use mlx_files::TEMPORARY;

use super::file::Key;
use crate::error::{Error, Result};

const EXTENSION: &str = "safetensors";
/// The largest header that is read. Our headers have a few thousand bytes.
const LARGEST_HEADER: u64 = 1 << 20;
/// The age after which a temporary file counts as left over from a crash.
const ABANDONED: Duration = Duration::from_mins(10);

/// A file of the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileEntry {
    /// Its path.
    pub(crate) path: PathBuf,
    /// Its size.
    pub(crate) bytes: u64,
    /// The time when it was written or last used.
    pub(crate) used: SystemTime,
}

/// Returns the path of the block with this key, for a model with this fingerprint.
pub(crate) fn path_of(folder: &Path, fingerprint: Key, key: Key) -> PathBuf {
    folder.join(fingerprint.to_string()).join(format!("{key}.{EXTENSION}"))
}

/// Returns the path of the checkpoint at the end of the block with this key.
pub(crate) fn state_path_of(folder: &Path, fingerprint: Key, key: Key) -> PathBuf {
    folder.join(fingerprint.to_string()).join(format!("{key}.state.{EXTENSION}"))
}

/// Reads the header of a safetensors file without its tensors.
pub(crate) fn header(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let mut header = Vec::new();
    file.take(u64::from_le_bytes(length).min(LARGEST_HEADER)).read_to_end(&mut header)?;
    Ok(header)
}

/// Marks a file as recently used.
pub(crate) fn touch(path: &Path, now: SystemTime) {
    // The file may be gone, or belong to another user. Then it only looks older than it is.
    OpenOptions::new().append(true).open(path).and_then(|file| file.set_modified(now)).ok();
}

/// Removes a file. A missing file is not an error.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path, error)),
        _ => Ok(()),
    }
}

/// Lists all blocks of all models in the folder, least recently used first. Removes temporary files left over from crashes.
///
/// The folder may contain other files, and listed files may be removed. Therefore only files named like a block are listed.
pub(crate) fn list(folder: &Path) -> Result<Vec<FileEntry>> {
    let mut files = Vec::new();
    for model in entries(folder)? {
        if !has_key(&model.path()) || !model.path().is_dir() {
            continue;
        }
        for entry in entries(&model.path())? {
            let path = entry.path();
            if !has_key(&path) {
                continue;
            }
            // Another process may remove files at the same time.
            let Ok(metadata) = entry.metadata() else { continue };
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            match path.extension().and_then(|extension| extension.to_str()) {
                Some(EXTENSION) => files.push(FileEntry { path, bytes: metadata.len(), used }),
                Some(TEMPORARY) if used.elapsed().is_ok_and(|age| age > ABANDONED) => {
                    fs::remove_file(&path).ok();
                }
                _ => {}
            }
        }
    }
    files.sort_by(|one, other| (one.used, &one.path).cmp(&(other.used, &other.path)));
    Ok(files)
}

/// Returns true if the file name is a key up to its first dot.
fn has_key(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let key = name.split('.').next().unwrap_or_default();
    key.len() == 32 && key.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

fn entries(folder: &Path) -> Result<Vec<fs::DirEntry>> {
    match fs::read_dir(folder) {
        Ok(entries) => Ok(entries.flatten().collect()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::io(folder, error)),
    }
}

/// Removes the least recently used blocks until the total is at most `bytes`. Returns the total.
pub(crate) fn shrink_to(folder: &Path, bytes: u64) -> Result<u64> {
    let files = list(folder)?;
    let mut total: u64 = files.iter().map(|file| file.bytes).sum();
    for file in files {
        if total <= bytes {
            break;
        }
        remove(&file.path)?;
        total -= file.bytes;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use mlx_files::write_atomically;

    use super::*;

    #[test]
    fn the_least_recently_used_files_are_removed_first() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = |name: u128| path_of(folder.path(), Key::root(1), Key::root(name));
        let begin = SystemTime::now();
        for name in 0..5 {
            write_atomically(&path(name), &[7; 100]).expect("it can be written");
            touch(&path(name), begin + Duration::from_secs(name as u64));
        }
        // A touch makes a file recent.
        touch(&path(0), begin + Duration::from_secs(100));
        let left = |files: Vec<FileEntry>| files.into_iter().map(|file| file.path).collect::<Vec<_>>();
        assert_eq!(left(list(folder.path()).expect("a list")), [1, 2, 3, 4, 0].map(path));
        assert_eq!(shrink_to(folder.path(), 250).expect("it can be written"), 200);
        assert_eq!(left(list(folder.path()).expect("a list")), [4, 0].map(path));
        remove(&path(4)).expect("it is there");
        remove(&path(4)).expect("it is gone, as it should be");
        assert_eq!(list(&folder.path().join("nothing")).expect("nothing is there"), []);
    }

    #[test]
    fn leftovers_of_a_crash_are_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let block = |name| path_of(folder.path(), Key::root(1), Key::root(name));
        let (old, new) = (block(1).with_extension("1.tmp"), block(2).with_extension("2.tmp"));
        write_atomically(&old, b"half").expect("it can be written");
        write_atomically(&new, b"half").expect("it can be written");
        touch(&old, SystemTime::now() - Duration::from_hours(1));
        assert_eq!(list(folder.path()).expect("a list"), []);
        assert!(!old.exists() && new.exists(), "the other one may still be being written");
    }

    #[test]
    fn foreign_files_are_not_touched() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let block = path_of(folder.path(), Key::root(1), Key::root(2));
        let foreign = [
            folder.path().join("llama/model.safetensors"),
            folder.path().join("llama/download.tmp"),
            block.with_file_name("model-00001-of-00002.safetensors"),
            block.with_file_name(format!("{:031x}.safetensors", 2)),
        ];
        for path in foreign.iter().chain([&block]) {
            write_atomically(path, &[7; 100]).expect("it can be written");
            touch(path, SystemTime::now() - Duration::from_hours(1));
        }
        assert_eq!(list(folder.path()).expect("a list").len(), 1);
        assert_eq!(shrink_to(folder.path(), 0).expect("it can be written"), 0);
        assert!(!block.exists() && foreign.iter().all(|path| path.exists()));
    }
}
