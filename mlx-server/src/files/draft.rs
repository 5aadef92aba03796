//! A file while it is written.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use axum::http::StatusCode;
use mlx_core::Error;
use mlx_core::engine::Client;
use mlx_options::ByteSize;

use super::{FileRecord, FileStore, MAX_FILES};
use crate::error::ApiError;
use crate::ids::random_id;
use crate::time;

/// A file while it is written. Dropping it removes the file, unless it is kept.
pub(crate) struct Draft {
    store: Arc<FileStore>,
    id: String,
    file: File,
    bytes: u64,
    is_kept: bool,
}

/// The reason that a file cannot be written or read.
#[derive(Debug)]
pub(crate) enum FileError {
    /// All files together reach this limit.
    Full(ByteSize),
    /// There are as many files as are allowed.
    TooMany,
    /// The disk reports an error.
    Disk(Error),
}

impl From<Error> for FileError {
    fn from(error: Error) -> Self {
        Self::Disk(error)
    }
}

impl From<FileError> for ApiError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Full(limit) => {
                let message = format!(
                    "all files together reach the {limit} that --files-size allows; delete some files"
                );
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "files_full", message)
            }
            FileError::TooMany => {
                let message = format!("there are {MAX_FILES} files, the maximum; delete some files");
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "files_full", message)
            }
            // The error names a path, so the client does not get it.
            FileError::Disk(error) => {
                tracing::error!(%error, "the folder of files cannot be used");
                Self::failed("the folder of files cannot be used; see the server's log")
            }
        }
    }
}

/// Returns a new id.
pub(crate) fn new_id() -> String {
    format!("file-{}", random_id())
}

impl Draft {
    /// Creates an empty file.
    pub(crate) fn new(store: &Arc<FileStore>) -> Result<Self, FileError> {
        store.check_count()?;
        Self::open(store, &new_id(), false)
    }

    /// Opens or creates the file with this id to append to it. It stays if it is dropped.
    pub(crate) fn resume(store: &Arc<FileStore>, id: &str) -> Result<Self, FileError> {
        Self::open(store, id, true)
    }

    fn open(store: &Arc<FileStore>, id: &str, is_kept: bool) -> Result<Self, FileError> {
        let path = store.data(id);
        let open = || -> io::Result<(File, u64)> {
            let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        };
        let (file, bytes) = open().map_err(|error| Error::io(&path, error))?;
        Ok(Self { store: Arc::clone(store), id: id.to_owned(), file, bytes, is_kept })
    }

    /// Appends bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.store.reserve(bytes.len() as u64)?;
        let before = self.bytes;
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|error| {
            // No part of these bytes stays.
            self.cut(before).ok();
            self.failed(error)
        })
    }

    /// Cuts the file to this length.
    pub(crate) fn cut(&mut self, bytes: u64) -> Result<(), FileError> {
        self.file.set_len(bytes).map_err(|error| self.failed(error))?;
        self.store.release(self.bytes - bytes);
        self.bytes = bytes;
        Ok(())
    }

    /// Returns the error for an operation on this file that failed.
    pub(crate) fn failed(&self, error: io::Error) -> FileError {
        Error::io(self.store.data(&self.id), error).into()
    }

    /// Returns the size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the file to read it.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Completes the file. It is on disk when this returns.
    pub(crate) fn finish(
        mut self,
        name: &str,
        purpose: &str,
        client: Client,
    ) -> Result<Arc<FileRecord>, FileError> {
        self.file.sync_all().map_err(|error| self.failed(error))?;
        let record = self.store.insert(FileRecord {
            id: self.id.clone(),
            bytes: self.bytes,
            created: time::now(),
            name: name.to_owned(),
            purpose: purpose.to_owned(),
            client: Some(client),
        })?;
        self.is_kept = true;
        Ok(record)
    }

    /// Removes the file.
    pub(crate) fn remove(mut self) {
        self.is_kept = false;
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_kept {
            std::fs::remove_file(self.store.data(&self.id)).ok();
            self.store.release(self.bytes);
        }
    }
}
