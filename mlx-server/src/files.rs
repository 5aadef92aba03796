//! Files that clients upload, and the results of batches. A file has a record `ID.json`, written when it is complete, and its bytes in
//! `ID.data`. Invariants: the server chooses all names in the folder; a client sees only its own files; one server uses the folder.

mod draft;

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use mlx_core::Error;
use mlx_core::engine::Client;
use mlx_files::{create_private_folder, sync_folder, warn_of_readers, write_privately};
use mlx_options::ByteSize;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use crate::client;
use crate::error::ApiError;
pub(crate) use draft::{Draft, FileError, new_id};

/// The purpose of an uploaded file.
pub(crate) const INPUT: &str = "batch";
/// The purpose of a file with the results of a batch.
pub(crate) const OUTPUT: &str = "batch_output";

/// The maximum number of files.
const MAX_FILES: usize = 50_000;
/// The name of the file that the running server locks.
const LOCK: &str = "server.lock";
/// The extension of the bytes of a file.
const DATA: &str = "data";

/// The description of a complete file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub(crate) id: String,
    /// The size in bytes.
    pub(crate) bytes: u64,
    /// The time of the upload, in seconds since 1970.
    pub(crate) created: u64,
    /// The name that the client gave. It is only shown.
    pub(crate) name: String,
    /// [`INPUT`] or [`OUTPUT`].
    pub(crate) purpose: String,
    /// The owner.
    #[serde(with = "client::stored")]
    pub(crate) client: Option<Client>,
}

/// The files of all clients.
pub(crate) struct FileStore {
    folder: PathBuf,
    limit: ByteSize,
    /// The size of all files, including incomplete ones.
    bytes: AtomicU64,
    files: Mutex<BTreeMap<String, Arc<FileRecord>>>,
    /// Locked until this process ends.
    _lock: File,
}

impl FileStore {
    /// Opens a folder, and creates it if it does not exist. Unreadable records are logged and skipped.
    pub(crate) fn open(folder: &Path, limit: ByteSize) -> mlx_core::Result<Self> {
        create_private_folder(folder)?;
        warn_of_readers(folder);
        let lock = lock(&folder.join(LOCK))?;
        let files: BTreeMap<_, _> = records::<FileRecord>(folder, "file-")
            .into_iter()
            .filter(|record| folder.join(&record.id).with_extension(DATA).is_file())
            .map(|record| (record.id.clone(), Arc::new(record)))
            .collect();
        let bytes = files.values().map(|record| record.bytes).sum();
        let (folder, bytes, files) = (folder.to_owned(), AtomicU64::new(bytes), Mutex::new(files));
        Ok(Self { folder, limit, bytes, files, _lock: lock })
    }

    /// Removes incomplete files of earlier runs, except files with these ids, which count towards the limit from now on.
    pub(crate) fn remove_incomplete(&self, needed: &HashSet<&str>) {
        for path in fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some((id, end)) = name.split_once('.').filter(|(id, _)| id.starts_with("file-")) else {
                continue;
            };
            if end == "json" || end == DATA && self.files().contains_key(id) {
                continue;
            }
            if end == DATA && needed.contains(id) {
                self.bytes.fetch_add(path.metadata().map_or(0, |it| it.len()), Ordering::Relaxed);
            } else if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(file = %path.display(), %error, "an incomplete file cannot be removed");
            }
        }
    }

    /// Returns the path of a file in the folder. The server chooses `name`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the file with this id, if it belongs to the client.
    pub(crate) fn get(&self, id: &str, client: Client) -> Result<Arc<FileRecord>, ApiError> {
        let files = self.files();
        let file = files.get(id).filter(|file| file.client == Some(client));
        file.cloned().ok_or_else(|| {
            ApiError::new(
                StatusCode::NOT_FOUND,
                "file_not_found",
                format!("no file {id:?}; it may have been deleted"),
            )
        })
    }

    /// Returns the files of a client, oldest first.
    pub(crate) fn list(&self, client: Client) -> Vec<Arc<FileRecord>> {
        let mut own: Vec<_> =
            self.files().values().filter(|file| file.client == Some(client)).cloned().collect();
        own.sort_by(|one, other| (one.created, &one.id).cmp(&(other.created, &other.id)));
        own
    }

    /// Opens the bytes of a file.
    pub(crate) fn read(&self, id: &str) -> Result<File, FileError> {
        let path = self.data(id);
        File::open(&path).map_err(|error| Error::io(&path, error).into())
    }

    /// Deletes a file. After an error, the file stays.
    pub(crate) fn delete(&self, file: &FileRecord) -> Result<(), FileError> {
        let mut files = self.files();
        // Without a record, the bytes are an incomplete file.
        let record = self.record(&file.id);
        match fs::remove_file(&record) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io(&record, error).into());
            }
            _ => {}
        }
        if files.remove(&file.id).is_some() {
            self.release(file.bytes);
        }
        drop(files);
        sync_folder(&self.folder);
        if let Err(error) = fs::remove_file(self.data(&file.id)) {
            tracing::warn!(id = file.id, %error, "the bytes of a deleted file are removed at the next start");
        }
        Ok(())
    }

    /// Writes the record of a complete file, from which on clients see it.
    fn insert(&self, record: FileRecord) -> mlx_core::Result<Arc<FileRecord>> {
        let path = self.record(&record.id);
        let text = serde_json::to_vec(&record).map_err(|error| Error::io(&path, error.into()))?;
        write_privately(&path, &text)?;
        let record = Arc::new(record);
        self.files().insert(record.id.clone(), Arc::clone(&record));
        Ok(record)
    }

    fn data(&self, id: &str) -> PathBuf {
        self.path(&format!("{id}.{DATA}"))
    }

    fn record(&self, id: &str) -> PathBuf {
        self.path(&format!("{id}.json"))
    }

    /// Returns an error if no further file may be uploaded.
    fn check_count(&self) -> Result<(), FileError> {
        if self.files().len() >= MAX_FILES { Err(FileError::TooMany) } else { Ok(()) }
    }

    /// Reserves bytes for an incomplete file.
    fn reserve(&self, bytes: u64) -> Result<(), FileError> {
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit.0);
        let reserved = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        reserved.map(drop).map_err(|_| FileError::Full(self.limit))
    }

    fn release(&self, bytes: u64) {
        let remove = |used: u64| Some(used.saturating_sub(bytes));
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, remove).ok();
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Arc<FileRecord>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs work with files on a blocking thread.
pub(crate) async fn blocking<T: Send + 'static, E: Into<ApiError> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, ApiError> {
    let done = spawn_blocking(work).await;
    // The panic was already logged.
    done.map_err(|_| ApiError::failed("internal error; see the server's log"))?.map_err(Into::into)
}

/// Reads the records of a folder whose names begin with `prefix`. Unreadable ones are logged and skipped.
pub(crate) fn records<T: for<'de> Deserialize<'de>>(folder: &Path, prefix: &str) -> Vec<T> {
    let read = |path: &Path| -> io::Result<T> { Ok(serde_json::from_slice(&fs::read(path)?)?) };
    let mut all = Vec::new();
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !name.starts_with(prefix) || path.extension().is_none_or(|end| end != "json") {
            continue;
        }
        match read(&path) {
            Ok(record) => all.push(record),
            Err(error) => tracing::error!(file = %path.display(), %error, "a record cannot be read"),
        }
    }
    all
}

/// Locks a file until the process ends, so that no other server answers the lines of a batch, too.
fn lock(path: &Path) -> mlx_core::Result<File> {
    let file = File::create(path).map_err(|error| Error::io(path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let reason = io::Error::other("another server uses this folder; give each server its own");
            Err(Error::io(path, reason))
        }
        Err(TryLockError::Error(error)) => Err(Error::io(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(folder: &Path, limit: u64) -> Arc<FileStore> {
        Arc::new(FileStore::open(folder, ByteSize(limit)).expect("it can be opened"))
    }

    fn add(store: &Arc<FileStore>, client: u64, bytes: &[u8]) -> Result<Arc<FileRecord>, FileError> {
        let mut draft = Draft::new(store)?;
        draft.write(bytes)?;
        draft.finish("../../name", INPUT, Client(client))
    }

    #[test]
    fn files_survive_a_restart_and_incomplete_ones_do_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = self::store(folder.path(), 100);
        let file = add(&store, 1, b"abc").expect("it fits");
        assert!(FileStore::open(folder.path(), ByteSize(1)).is_err(), "another server uses the folder");
        std::fs::write(folder.path().join("file-x.data"), "torn").expect("it can be written");
        std::fs::write(folder.path().join("file-y.data"), "needed").expect("it can be written");
        std::fs::write(folder.path().join("file-z.abc.tmp"), "torn").expect("it can be written");
        drop(store);

        let store = self::store(folder.path(), 100);
        store.remove_incomplete(&HashSet::from(["file-y"]));
        assert_eq!(store.get(&file.id, Client(1)), Ok(Arc::clone(&file)));
        assert_eq!(store.get(&file.id, Client(2)).map_err(|error| error.status().as_u16()), Err(404));
        assert_eq!((store.list(Client(1)).len(), store.list(Client(2)).len()), (1, 0));
        assert_eq!(store.bytes.load(Ordering::Relaxed), 9);
        store.delete(&file).expect("it can be deleted");
        let mut left: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").flatten().collect();
        left.sort_by_key(std::fs::DirEntry::file_name);
        assert_eq!(left.iter().map(std::fs::DirEntry::file_name).collect::<Vec<_>>(), ["file-y.data", LOCK]);
    }

    #[test]
    fn all_files_together_stay_within_the_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = self::store(folder.path(), 10);
        let file = add(&store, 1, b"1234567").expect("it fits");
        assert!(matches!(add(&store, 2, b"1234"), Err(FileError::Full(ByteSize(10)))));
        add(&store, 2, b"123").expect("the rejected file takes no space");
        store.delete(&file).expect("it can be deleted");
        add(&store, 2, b"1234567").expect("the deleted file takes no space");
    }
}
