//! Input of a command: from a flag, a file or standard input.

use std::io::{IsTerminal, Read, stdin};
use std::path::{Path, PathBuf};

use chat_format::{Audio, Image};
use mlx_core::{Error, Result};
use rustix::fs::FileType;

use crate::exit_code::Failure;

/// Returns the given text or that of `file`; without either, or with `-`, reads standard input. Errors name `flag`.
pub(crate) fn read_text(given: Option<&str>, file: Option<&Path>, flag: &str) -> Result<String, Failure> {
    if let Some(file) = file {
        return Ok(read_file(file)?);
    }
    match given {
        Some(text) if text != "-" => Ok(text.to_owned()),
        None if stdin().is_terminal() => {
            Err(Failure::usage(flag, "is missing; give a text, or pipe one to standard input"))
        }
        _ => {
            let mut text = String::new();
            stdin().read_to_string(&mut text).map_err(|source| Error::io("standard input", source))?;
            Ok(text)
        }
    }
}

/// Appends piped text, if any.
pub(crate) fn with_piped(text: String) -> Result<String, Failure> {
    if stdin().is_terminal() {
        return Ok(text);
    }
    let mut piped = String::new();
    stdin().read_to_string(&mut piped).map_err(|source| Error::io("standard input", source))?;
    Ok(if piped.trim().is_empty() { text } else { format!("{text}\n\n{piped}") })
}

/// Returns true if standard input is a pipe or a file, which may contain a text.
pub(crate) fn is_piped() -> bool {
    let kind = rustix::fs::fstat(stdin()).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::RegularFile | FileType::Socket))
}

/// Reads a text file.
pub(crate) fn read_file(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|source| Error::io(path, source))
}

/// Reads picture files. They are decoded when the model gets them.
pub(crate) fn read_images(paths: &[PathBuf]) -> Result<Vec<Image>, Failure> {
    let read = |path: &PathBuf| {
        let bytes = read_bytes(path, "pictures", Image::largest_file())?;
        if !Image::is_file(&bytes) {
            return Err(Error::file(path, "is not a png, jpeg, webp or gif file").into());
        }
        Ok(Image::file(bytes))
    };
    paths.iter().map(read).collect()
}

/// Reads audio files. They are decoded when the model gets them.
pub(crate) fn read_audio(paths: &[PathBuf]) -> Result<Vec<Audio>, Failure> {
    let read = |path: &PathBuf| {
        let bytes = read_bytes(path, "audio", Audio::LARGEST_FILE)?;
        if !Audio::is_file(&bytes) {
            return Err(Error::file(path, "is not a wav, flac, mp3, m4a, aac or ogg file").into());
        }
        Ok(Audio::file(bytes))
    };
    paths.iter().map(read).collect()
}

/// Reads a file of at most `max_len` bytes.
fn read_bytes(path: &Path, kind: &str, max_len: usize) -> Result<Vec<u8>, Failure> {
    let size = std::fs::metadata(path).map_err(|source| Error::io(path, source))?.len();
    if size > max_len as u64 {
        let message = format!("has {size} bytes; the limit for {kind} is {max_len}");
        return Err(Error::file(path, message).into());
    }
    Ok(std::fs::read(path).map_err(|source| Error::io(path, source))?)
}

/// Replaces a leading `~/` with the home folder.
pub(crate) fn expanded(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tilde_at_the_beginning_is_the_home_folder() {
        let home = std::env::home_dir().expect("the tests run as someone");
        assert_eq!(expanded("~/notes.md"), home.join("notes.md"));
        assert_eq!(expanded("a/~/b"), PathBuf::from("a/~/b"));
        assert_eq!(expanded("~"), PathBuf::from("~"));
    }
}
