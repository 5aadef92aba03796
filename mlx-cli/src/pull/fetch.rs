//! Files of a model, fetched into the cache: resumed where an earlier try stopped, checked against their checksums, several side by side.
//! Invariant: a content under its final name was whole and had its checksum when it got the name.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use mlx_core::hub::Repo;
use mlx_core::{Error, Result, keep_names, size};
use ureq::http::{Response, StatusCode};

use super::backoff::{Backoff, FetchError};
use super::checksum::Checksum;
use super::client::Client;
use super::listing::HubFile;
use crate::terminal::{Bar, Bars};

/// Files that are fetched at once.
const AT_ONCE: usize = 4;
/// Tries in a row that bring no byte; their pauses add up to half a minute.
const TRIES: u32 = 7;

/// Fetches files of one commit.
pub(super) struct Fetch<'a> {
    client: &'a Client,
    repo: &'a Repo,
    commit: &'a str,
    /// One has failed; the others need not go on.
    stopped: AtomicBool,
}

impl<'a> Fetch<'a> {
    pub(super) fn new(client: &'a Client, repo: &'a Repo, commit: &'a str) -> Self {
        Self { client, repo, commit, stopped: AtomicBool::new(false) }
    }

    /// Fetches these files, as far as they are not there yet.
    pub(super) fn all(&self, files: &[&HubFile]) -> Result<()> {
        let (bars, next, failure) = (Bars::new(), AtomicUsize::new(0), Mutex::new(None));
        let work = || {
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                let bar = bars.file(&file.path, file.size);
                if let Err(error) = self.one(file, &bar) {
                    self.stopped.store(true, Ordering::Relaxed);
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
                if self.stopped.load(Ordering::Relaxed) {
                    return;
                }
                bar.done();
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(files.len()) {
                scope.spawn(work);
            }
        });
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn one(&self, file: &HubFile, bar: &Bar) -> Result<()> {
        let wait = || bar.note("another program fetches it; waiting for that");
        let _lock = self.repo.lock(&file.etag, wait)?;
        let blob = self.repo.blob(&file.etag);
        if blob.exists() {
            if file.is_sound(&blob, &mut |bytes| bar.show("checking", bytes))? {
                return self.repo.link(self.commit, &file.path, &file.etag);
            }
            bar.note("what was there is damaged; it is fetched again");
            fs::remove_file(&blob).map_err(|error| Error::io(&blob, error))?;
        }
        self.content(file, &blob, bar)?;
        self.repo.link(self.commit, &file.path, &file.etag)
    }

    /// Fetches a content that is not there. What arrives wrong is fetched once more, since the fault may be in what an earlier try has left.
    fn content(&self, file: &HubFile, blob: &Path, bar: &Bar) -> Result<()> {
        for _ in 0..2 {
            let mut partial = Partial::open(self.repo.partial(&file.etag), file, bar)?;
            self.complete(file, &mut partial, bar)?;
            if partial.finish(blob)? {
                return Ok(());
            }
            bar.note("what has arrived is damaged; it is fetched again");
        }
        let message =
            format!("{} arrived damaged twice: it has not the checksum that the hub gives for it", file.path);
        Err(self.client.error(message))
    }

    fn complete(&self, file: &HubFile, partial: &mut Partial, bar: &Bar) -> Result<()> {
        let mut patience = Backoff::new(TRIES);
        loop {
            let before = partial.length;
            let (why, wait) = match self.attempt(file, partial, bar) {
                Ok(()) => return Ok(()),
                Err(FetchError::Final(error)) => return Err(error),
                Err(FetchError::Passing { why, wait }) => (why, wait),
            };
            if partial.length > before {
                patience.renew();
            }
            patience.wait(why, wait, |why| bar.note(&format!("{why}; trying again"))).map_err(|why| {
                let message = format!(
                    "{}: {why}. What has arrived is kept; the same command goes on from there",
                    file.path
                );
                self.client.error(message)
            })?;
        }
    }

    /// One request: adds what it brings.
    fn attempt(&self, file: &HubFile, partial: &mut Partial, bar: &Bar) -> Result<(), FetchError> {
        if partial.length == file.size {
            return Ok(());
        }
        let response = self.client.file(self.commit, &file.path, partial.length)?;
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            partial.restart()?;
            return Err(FetchError::passing("the hub has no such range"));
        }
        if start_of(&response) != partial.length {
            partial.restart()?;
            if start_of(&response) != 0 {
                return Err(FetchError::passing("the hub sent another range"));
            }
        }
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 18];
        while partial.length <= file.size {
            if self.stopped.load(Ordering::Relaxed) {
                return Err(FetchError::Final(self.client.error("was not fetched to its end")));
            }
            match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => partial.add(&buffer[..count])?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(FetchError::passing(format!("the connection was lost ({error})"))),
            }
            bar.show("", partial.length);
        }
        if partial.length < file.size { Err(FetchError::passing("the connection was lost")) } else { Ok(()) }
    }
}

/// The position in the file of the first byte of an answer.
fn start_of<T>(response: &Response<T>) -> u64 {
    if response.status() != StatusCode::PARTIAL_CONTENT {
        return 0;
    }
    let range = response.headers().get("content-range").and_then(|range| range.to_str().ok());
    let start = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse().ok());
    // A range that is not named is not the one that was asked for.
    start.unwrap_or(u64::MAX)
}

/// A content that is not whole yet.
struct Partial<'a> {
    wanted: &'a HubFile,
    path: PathBuf,
    file: File,
    checksum: Checksum,
    length: u64,
}

impl<'a> Partial<'a> {
    /// Opens what an earlier try has left, or an empty file.
    fn open(path: PathBuf, wanted: &'a HubFile, bar: &Bar) -> Result<Self> {
        let mut checksum = Checksum::new(&wanted.etag, wanted.size);
        let mut opened = || {
            fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path)?;
            let length = checksum.read(&mut file, &mut |bytes| bar.show("checking", bytes))?;
            Ok((file, length))
        };
        let (file, length) = opened().map_err(|error| Error::io(&path, error))?;
        let mut partial = Self { wanted, path, file, checksum, length };
        if length > wanted.size {
            partial.restart()?;
        }
        bar.resume(partial.length);
        Ok(partial)
    }

    fn restart(&mut self) -> Result<()> {
        self.file.set_len(0).map_err(|error| Error::io(&self.path, error))?;
        self.checksum = Checksum::new(&self.wanted.etag, self.wanted.size);
        self.length = 0;
        Ok(())
    }

    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| self.not_written(error))?;
        self.checksum.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Gives the content its name if it is what it should be, and removes it if it is not.
    fn finish(self, blob: &Path) -> Result<bool> {
        let Self { wanted, path, file, checksum, length } = self;
        if length != wanted.size || !checksum.is(&wanted.etag) {
            fs::remove_file(&path).map_err(|error| Error::io(&path, error))?;
            return Ok(false);
        }
        file.sync_all().and_then(|()| fs::rename(&path, blob)).map_err(|error| Error::io(blob, error))?;
        blob.parent().map(keep_names);
        Ok(true)
    }

    fn not_written(&self, error: std::io::Error) -> Error {
        if !matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
            return Error::io(&self.path, error);
        }
        let missing = size(self.wanted.size.saturating_sub(self.length));
        let message = format!(
            "the disk is full, and {} lacks {missing} yet; make room, or move the cache with HF_HOME. What has arrived is kept",
            self.wanted.path
        );
        Error::file(&self.path, message)
    }
}
