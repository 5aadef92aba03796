//! The log file of the service: written with rotation, and read from its end.

use std::fs::{File, OpenOptions, rename};
use std::io::{Read, Result as IoResult, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mlx_core::Error;
use serde_json::Value;

use crate::chat::state_folder;
use crate::exit_code::Failure;
use crate::terminal;

/// The size at which a file is renamed, in bytes.
const MAX_BYTES: u64 = 10 << 20;
/// The number of renamed files to keep: `serve.log.1` is the newest.
const KEPT: usize = 3;
/// The time between two looks at a file that is followed.
const PAUSE: Duration = Duration::from_millis(200);

/// The file of the log.
pub(super) struct LogFile(PathBuf);

impl LogFile {
    /// Returns the log of the service, which may not exist.
    pub(super) fn default_one() -> Result<Self, Failure> {
        let folder = state_folder()
            .ok_or_else(|| Error::environment("HOME", "is not set, so there is no folder for the log"))?;
        Ok(Self(folder.join("serve.log")))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the size in bytes; 0 if it does not exist.
    pub(super) fn len(&self) -> u64 {
        self.0.metadata().map_or(0, |metadata| metadata.len())
    }

    /// Returns the address that the server reports last, in the lines after this position.
    pub(super) fn address_after(&self, position: u64) -> Option<String> {
        let mut text = Vec::new();
        let mut file = File::open(&self.0).ok()?;
        file.seek(SeekFrom::Start(position)).and_then(|_| file.read_to_end(&mut text)).ok()?;
        let text = String::from_utf8_lossy(&text);
        text.lines().rev().find_map(address)
    }

    /// Returns the address that the server reported last, also in renamed files.
    pub(super) fn last_address(&self) -> Option<String> {
        let older = || (1..=KEPT).find_map(|number| Self(renamed(&self.0, number)).address_after(0));
        self.address_after(0).or_else(older)
    }

    /// Prints the last lines, and further ones if it `follow`s.
    pub(super) fn show(&self, lines: usize, follow: bool) -> Result<(), Failure> {
        let about = |error| Error::io(&self.0, error);
        if !self.0.exists() {
            let message = "has not been written yet; `mlx service install` starts the service";
            return Err(Error::io(&self.0, std::io::Error::other(message)).into());
        }
        let mut file = File::open(&self.0).map_err(about)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(about)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut older = String::new();
        if text.lines().count() < lines {
            let bytes = std::fs::read(renamed(&self.0, 1)).unwrap_or_default();
            older = String::from_utf8_lossy(&bytes).into_owned();
        }
        let all: Vec<&str> = older.lines().chain(text.lines()).collect();
        for line in &all[all.len().saturating_sub(lines)..] {
            terminal::show(&format!("{line}\n"))?;
        }
        if follow { self.follow(file) } else { Ok(()) }
    }

    /// Prints what is written to this file from now on, and to those after it.
    fn follow(&self, mut file: File) -> Result<(), Failure> {
        let about = |error| Error::io(&self.0, error);
        loop {
            std::thread::sleep(PAUSE);
            let mut more = Vec::new();
            file.read_to_end(&mut more).map_err(about)?;
            if !more.is_empty() {
                terminal::show(&String::from_utf8_lossy(&more))?;
            } else if is_other(&file, &self.0) {
                file = File::open(&self.0).map_err(about)?;
            }
        }
    }
}

/// Returns true if the path leads to another file than this one, which was renamed.
fn is_other(file: &File, path: &Path) -> bool {
    let (Ok(own), Ok(now)) = (file.metadata(), path.metadata()) else { return false };
    (own.dev(), own.ino()) != (now.dev(), now.ino())
}

/// Returns the address in the line of a server that listens.
fn address(line: &str) -> Option<String> {
    let line: Value = serde_json::from_str(line).ok()?;
    let address = line["address"].as_str().filter(|_| line["message"] == "listening")?;
    let scheme = if line["https"] == true { "https" } else { "http" };
    Some(format!("{scheme}://{address}"))
}

/// Returns the path of a renamed file.
fn renamed(path: &Path, number: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// Appends to a file, which is renamed when it is large.
pub(super) struct RotatingLog {
    path: PathBuf,
    file: File,
    size: u64,
    max_bytes: u64,
}

impl RotatingLog {
    /// Opens the file, and creates its folder if it does not exist.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        path.parent().map_or(Ok(()), mlx_files::create_private_folder)?;
        Ok(Self::with_limit(path, MAX_BYTES).map_err(|error| Error::io(path, error))?)
    }

    fn with_limit(path: &Path, max_bytes: u64) -> IoResult<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let size = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, size, max_bytes })
    }

    /// Writes some output. Files end with whole lines, unless a line is as long as a file. A failed write loses its bytes: the server must
    /// continue when the disk is full.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.file.write_all(bytes).ok();
        self.size += bytes.len() as u64;
        if self.size >= self.max_bytes && (bytes.ends_with(b"\n") || self.size >= 2 * self.max_bytes) {
            for number in (1..KEPT).rev() {
                rename(renamed(&self.path, number), renamed(&self.path, number + 1)).ok();
            }
            rename(&self.path, renamed(&self.path, 1)).ok();
            if let Ok(next) = Self::with_limit(&self.path, self.max_bytes) {
                *self = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_is_renamed_and_the_oldest_is_dropped() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("serve.log");
        let mut log = RotatingLog::with_limit(&path, 20).expect("it can be written");
        for number in 0..50 {
            log.append(format!("line {number:02}\n").as_bytes());
        }
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let all: String =
            (1..=KEPT).rev().map(|it| read(&renamed(&path, it))).collect::<String>() + &read(&path);
        let expected: Vec<String> = (39..50).map(|number| format!("line {number:02}")).collect();
        assert_eq!(all.lines().collect::<Vec<_>>(), expected, "whole lines, in order, of the newest files");
        assert!(!renamed(&path, KEPT + 1).exists());
        // An old file is continued.
        RotatingLog::with_limit(&path, 1000).expect("it can be written").append(b"next\n");
        assert!(read(&path).ends_with("line 49\nnext\n"));
        // A line without an end does not grow a file for ever.
        let mut log = RotatingLog::with_limit(&path, 20).expect("it can be written");
        for _ in 0..100 {
            log.append(b"xxxxxxx");
        }
        assert!(path.metadata().expect("a file").len() <= 40);
    }

    #[test]
    fn the_address_is_that_of_the_last_start() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = LogFile(folder.path().join("serve.log"));
        assert_eq!((log.address_after(0), log.len()), (None, 0));
        let first = "{\"address\":\"127.0.0.1:1\",\"https\":false,\"message\":\"listening\"}\n";
        std::fs::write(log.path(), format!("error: x\n{first}{{\"message\":\"answer\"}}\n")).expect("a file");
        assert_eq!(log.address_after(0).as_deref(), Some("http://127.0.0.1:1"));
        assert_eq!(log.address_after(log.len()), None);
        let before = log.len();
        let second = first.replace(":1\"", ":2\"").replace("false", "true");
        std::fs::write(log.path(), std::fs::read_to_string(log.path()).expect("a file") + &second)
            .expect("a file");
        assert_eq!(log.address_after(before).as_deref(), Some("https://127.0.0.1:2"));
        rename(log.path(), renamed(log.path(), 2)).expect("the same folder");
        std::fs::write(log.path(), "{}\n").expect("a file");
        assert_eq!(log.last_address().as_deref(), Some("https://127.0.0.1:2"));
    }
}
