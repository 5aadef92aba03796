//! The audio files that arguments name.

use std::path::{Path, PathBuf};

use mlx_core::Error;

use crate::exit_code::Failure;

/// The suffixes of files in folders that are transcribed. Files that are named themselves may have any.
const SUFFIXES: [&str; 12] =
    ["wav", "flac", "mp3", "m4a", "mp4", "aac", "ogg", "oga", "opus", "webm", "weba", "m4b"];

/// Returns the named files, and the audio files in the named folders in alphabetical order.
pub(super) fn expanded(named: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in named {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).map_err(|error| Error::io(path, error))?;
        let mut found: Vec<PathBuf> =
            entries.flatten().map(|entry| entry.path()).filter(|path| is_audio(path)).collect();
        if found.is_empty() {
            let message = format!("has no audio files with the suffixes {}", SUFFIXES.join(", "));
            return Err(Failure::usage(&path.display().to_string(), message));
        }
        found.sort();
        files.extend(found);
    }
    Ok(files)
}

fn is_audio(path: &Path) -> bool {
    let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_lowercase());
    path.is_file() && suffix.is_some_and(|suffix| SUFFIXES.contains(&suffix.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_stand_for_their_audio_files() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["b.WAV", "a.mp3", "notes.txt"] {
            std::fs::write(folder.path().join(name), "").expect("it is written");
        }
        let files = expanded(&[folder.path().to_owned(), PathBuf::from("other.bin")]).expect("files");
        let names: Vec<_> = files.iter().filter_map(|path| path.file_name()?.to_str()).collect();
        assert_eq!(names, ["a.mp3", "b.WAV", "other.bin"]);
        let empty = tempfile::tempdir().expect("a folder");
        assert!(expanded(&[empty.path().to_owned()]).is_err());
    }
}
