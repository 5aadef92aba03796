//! The GGUF files that are open in this process. A model is read piece by piece, and each header has the whole vocabulary.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use crate::error::{Error, Result};
use crate::file::{GgufFile, SplitName};

/// The open files, with the state of their parts when they were opened.
static OPEN: Mutex<Vec<(Stamp, Weak<GgufFile>)>> = Mutex::new(Vec::new());

/// The path, size and modification time of each part of a model.
type Stamp = Vec<(PathBuf, u64, Option<SystemTime>)>;

/// Returns the files of the model with the first file `path`, by their names. Reads nothing.
pub fn parts(path: &Path) -> Vec<PathBuf> {
    match SplitName::of(path) {
        Some(name) => (1..=name.count).map(|number| name.path(number)).collect(),
        None => vec![path.to_path_buf()],
    }
}

/// Opens the file at `path`. Returns the open one if it is still in use and unchanged.
pub(crate) fn open(path: &Path) -> Result<Arc<GgufFile>> {
    let Ok(stamp) = parts(path).into_iter().map(state).collect::<Result<Stamp>>() else {
        // The reader of the file finds the better error.
        return GgufFile::open(path).map(Arc::new);
    };
    if let Some(file) = of(&stamp) {
        return Ok(file);
    }
    let file = Arc::new(GgufFile::open(path)?);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|(_, file)| file.strong_count() > 0);
    open.push((stamp, Arc::downgrade(&file)));
    Ok(file)
}

fn of(stamp: &Stamp) -> Option<Arc<GgufFile>> {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.iter().find(|(other, _)| other == stamp).and_then(|(_, file)| file.upgrade())
}

fn state(path: PathBuf) -> Result<(PathBuf, u64, Option<SystemTime>)> {
    let about = fs::metadata(&path).map_err(|source| Error::io(&path, source))?;
    Ok((path, about.len(), about.modified().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_is_shared_until_it_is_dropped_or_changes() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("m.gguf");
        let write = |keys: u64, rest: &[u8]| {
            let header = [&b"GGUF\x03\0\0\0"[..], &0_u64.to_le_bytes(), &keys.to_le_bytes(), rest].concat();
            fs::write(&path, header).expect("it is written");
        };
        write(0, &[]);
        let first = open(&path).expect("a valid file");
        assert!(Arc::ptr_eq(&first, &open(&path).expect("it is open")));
        // One key of type bool.
        write(1, &[1, 0, 0, 0, 0, 0, 0, 0, b'k', 7, 0, 0, 0, 1]);
        let changed = open(&path).expect("a valid file");
        assert!(!Arc::ptr_eq(&first, &changed));
        assert_eq!(changed.metadata().keys().collect::<Vec<_>>(), ["k"]);
        let old = Arc::downgrade(&changed);
        drop(changed);
        assert!(old.upgrade().is_none(), "only its users keep it");
        assert!(open(&path).is_ok());
    }
}
