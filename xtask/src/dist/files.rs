//! Copies and lists the files of a folder.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Copies these files and folders from `from` to the same relative paths in `into`.
pub(crate) fn copy(parts: &[&str], from: &Path, into: &Path) -> Result<()> {
    for part in parts {
        let path = from.join(part);
        let files = if path.is_dir() { files_of(&path)? } else { vec![path] };
        for file in files.iter().filter(|file| is_loaded(file)) {
            let to = into.join(file.strip_prefix(from)?);
            fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
            fs::copy(file, to).with_context(|| format!("cannot copy {}", file.display()))?;
        }
    }
    Ok(())
}

/// Returns true if programs load the file: a library, or the kernels of a GPU.
fn is_loaded(file: &Path) -> bool {
    [".so", ".dylib", ".metallib"].iter().any(|end| name_of(file).contains(end))
}

pub(super) fn name_of(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns all files below a folder, sorted.
pub(super) fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut entries: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    entries.sort();
    let mut files = Vec::new();
    for entry in entries {
        if entry.is_dir() {
            files.extend(files_of(&entry)?);
        } else {
            files.push(entry);
        }
    }
    Ok(files)
}
