//! Downloads the files of a model into the cache: resumable, in parallel, and verified against their checksums.
//! Invariant: a file gets its final name only when it is complete and its checksum matches.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use mlx_files::{size, sync_folder};
use mlx_hub::Repo;
use mlx_hub::{Error, Result};
use ureq::http::{Response, StatusCode};

use super::backoff::{Backoff, FetchError};
use super::checksum::Checksum;
use super::client::Client;
use super::listing::HubFile;
use super::plan::Plan;
use super::progress::{FileProgress, Progress};

/// Files downloaded in parallel.
const PARALLEL_FILES: usize = 4;
/// Maximum consecutive attempts without progress. Their pauses add up to half a minute.
const MAX_ATTEMPTS: u32 = 7;

/// Downloads files of one commit.
pub(crate) struct Fetch<'a> {
    client: &'a Client,
    repo: &'a Repo,
    commit: &'a str,
    /// The commit of the client's model. It differs from `commit` if the files are borrowed.
    source: &'a str,
    /// Set when a file has failed, to stop the other downloads.
    stopped: AtomicBool,
}

impl<'a> Fetch<'a> {
    /// Returns a download of this commit into this cache entry.
    pub(crate) fn new(client: &'a Client, repo: &'a Repo, commit: &'a str) -> Self {
        Self { client, repo, commit, source: commit, stopped: AtomicBool::new(false) }
    }

    /// Downloads the files that the plan borrows from another model.
    pub(crate) fn borrowed(&self, plan: &'a Plan, progress: &dyn Progress) -> Result<()> {
        let Some(lender) = &plan.lender else { return Ok(()) };
        let fetch = Self { source: &lender.commit, ..Self::new(&lender.client, self.repo, self.commit) };
        fetch.all(&lender.files, progress)
    }

    /// Downloads the given files that are not in the cache.
    pub(crate) fn all(&self, files: &[HubFile], progress: &dyn Progress) -> Result<()> {
        let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
        let work = || {
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                let bar = progress.file(&file.path);
                if let Err(error) = self.one(file, &*bar) {
                    self.stopped.store(true, Ordering::Relaxed);
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
                if self.stopped.load(Ordering::Relaxed) {
                    return;
                }
                bar.done(file.size);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..PARALLEL_FILES.min(files.len()) {
                scope.spawn(work);
            }
        });
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn one(&self, file: &HubFile, bar: &dyn FileProgress) -> Result<()> {
        let mut is_noted = false;
        let wait = || {
            if !std::mem::replace(&mut is_noted, true) {
                bar.note("another program is downloading this file; waiting for it");
            }
            self.check_stop(bar)
        };
        let _lock = self.repo.lock(&file.etag, wait)?;
        let blob = self.repo.blob(&file.etag);
        if blob.exists() {
            if file.is_intact(&blob, &mut |bytes| bar.verified(bytes))? {
                return self.repo.link(self.commit, &file.path, &file.etag);
            }
            bar.note("the cached file is damaged; downloading it again");
            fs::remove_file(&blob).map_err(|error| Error::io(&blob, error))?;
        }
        self.content(file, &blob, bar)?;
        self.repo.link(self.commit, &file.path, &file.etag)
    }

    /// Downloads a file that is not in the cache. A wrong checksum causes one more download, since the partial file may
    /// have been damaged.
    fn content(&self, file: &HubFile, blob: &Path, bar: &dyn FileProgress) -> Result<()> {
        for _ in 0..2 {
            let mut partial = Partial::open(self.repo.partial(&file.etag), file, bar)?;
            self.complete(file, &mut partial, bar)?;
            if partial.finish(blob)? {
                return Ok(());
            }
            bar.note("the download is damaged; downloading it again");
        }
        let message =
            format!("{} was damaged in two downloads: its checksum differs from the Hub's", file.path);
        Err(self.client.error(message))
    }

    fn complete(&self, file: &HubFile, partial: &mut Partial, bar: &dyn FileProgress) -> Result<()> {
        let mut backoff = Backoff::new(MAX_ATTEMPTS);
        loop {
            self.check_stop(bar)?;
            let before = partial.length;
            let (why, retry_after) = match self.attempt(file, partial, bar) {
                Ok(()) => return Ok(()),
                Err(FetchError::Final(error)) => return Err(error),
                Err(FetchError::Transient { why, retry_after }) => (why, retry_after),
            };
            if partial.length > before {
                backoff.reset();
            }
            let note = |why: &str| bar.note(&format!("{why}; retrying"));
            backoff.wait(why, retry_after, note, || bar.is_cancelled()).map_err(|why| {
                let message =
                    format!("{}: {why}. The partial download is kept; the next one continues it", file.path);
                self.client.error(message)
            })?;
        }
    }

    /// Fails if another file has failed, or if the download is cancelled.
    fn check_stop(&self, bar: &dyn FileProgress) -> Result<()> {
        if self.stopped.load(Ordering::Relaxed) || bar.is_cancelled() {
            return Err(self.client.error("the download was stopped; the next one continues it"));
        }
        Ok(())
    }

    /// Sends one request and appends the received bytes.
    fn attempt(
        &self,
        file: &HubFile,
        partial: &mut Partial,
        bar: &dyn FileProgress,
    ) -> Result<(), FetchError> {
        if partial.length == file.size {
            return Ok(());
        }
        let response = self.client.file(self.source, &file.path, partial.length)?;
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            partial.restart()?;
            return Err(FetchError::transient("the Hub refuses the byte range"));
        }
        if start_of(&response) != partial.length {
            partial.restart()?;
            if start_of(&response) != 0 {
                return Err(FetchError::transient("the Hub sent another byte range"));
            }
        }
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 18];
        while partial.length <= file.size {
            self.check_stop(bar)?;
            match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => partial.add(&buffer[..count])?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(FetchError::transient(format!("the connection was lost ({error})")));
                }
            }
            bar.received(partial.length);
        }
        if partial.length < file.size {
            Err(FetchError::transient("the connection was lost"))
        } else {
            Ok(())
        }
    }
}

/// Returns the file offset of the first byte of a response.
fn start_of<T>(response: &Response<T>) -> u64 {
    if response.status() != StatusCode::PARTIAL_CONTENT {
        return 0;
    }
    let range = response.headers().get("content-range").and_then(|range| range.to_str().ok());
    let start = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse().ok());
    // Without a valid range the offset is unknown. It must not equal the requested one.
    start.unwrap_or(u64::MAX)
}

/// An incomplete download.
struct Partial<'a> {
    target: &'a HubFile,
    path: PathBuf,
    file: File,
    checksum: Checksum,
    length: u64,
}

impl<'a> Partial<'a> {
    /// Opens the partial file of an earlier run, or creates an empty one.
    fn open(path: PathBuf, target: &'a HubFile, bar: &dyn FileProgress) -> Result<Self> {
        let mut checksum = Checksum::new(&target.etag, target.size);
        let mut opened = || {
            fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path)?;
            let length = checksum.read(&mut file, &mut |bytes| bar.verified(bytes))?;
            Ok((file, length))
        };
        let (file, length) = opened().map_err(|error| Error::io(&path, error))?;
        let mut partial = Self { target, path, file, checksum, length };
        if length > target.size {
            partial.restart()?;
        }
        bar.resumed(partial.length);
        Ok(partial)
    }

    fn restart(&mut self) -> Result<()> {
        self.file.set_len(0).map_err(|error| Error::io(&self.path, error))?;
        self.checksum = Checksum::new(&self.target.etag, self.target.size);
        self.length = 0;
        Ok(())
    }

    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| self.not_written(error))?;
        self.checksum.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Renames a verified file to its final name. Removes a damaged file and returns false.
    fn finish(self, blob: &Path) -> Result<bool> {
        let Self { target, path, file, checksum, length } = self;
        if length != target.size || !checksum.matches(&target.etag) {
            fs::remove_file(&path).map_err(|error| Error::io(&path, error))?;
            return Ok(false);
        }
        file.sync_all().and_then(|()| fs::rename(&path, blob)).map_err(|error| Error::io(blob, error))?;
        blob.parent().map(sync_folder);
        Ok(true)
    }

    fn not_written(&self, error: std::io::Error) -> Error {
        if !matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
            return Error::io(&self.path, error);
        }
        let missing = size(self.target.size.saturating_sub(self.length));
        let message = format!(
            "the disk is full, and {} still needs {missing}; free some space, or move the cache with HF_HOME. The partial download is kept",
            self.target.path
        );
        Error::file(&self.path, message)
    }
}
