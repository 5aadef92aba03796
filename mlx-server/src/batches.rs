//! Batches: files of requests that are answered in the background, one line each, at low priority. Invariants: a batch is on disk before
//! its creation is confirmed; each line gets one entry in the results, also if the server is killed in between.

mod feed;
mod line;
mod record;
mod results;
pub(crate) mod run;
mod send;
mod totals;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use mlx_core::Error;
use mlx_core::engine::Client;
use mlx_files::write_privately;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::config::FileConfig;
use crate::error::ApiError;
use crate::files::{self, FileStore};
pub(crate) use record::{BatchRecord, Status, WINDOW};
pub(crate) use totals::Usage;

/// The maximum number of stored batches. Beyond it, the oldest ended one is removed; its files stay.
const MAX_BATCHES: usize = 10_000;
/// The maximum number of batches in progress. Others wait.
const MAX_RUNNING: usize = 32;

/// The batches of all clients.
pub(crate) struct Batches {
    /// The files.
    pub(crate) files: Arc<FileStore>,
    all: Mutex<BTreeMap<String, Arc<Batch>>>,
    /// The maximum number of lines that run at the same time, and one permit for each.
    line_count: usize,
    lines: Arc<Semaphore>,
    /// One permit per batch in progress.
    running: Semaphore,
}

/// A batch.
pub(crate) struct Batch {
    record: Mutex<BatchRecord>,
    /// Cancelled when its client cancels the batch.
    cancelled: CancellationToken,
}

impl Batch {
    fn new(record: BatchRecord) -> Arc<Self> {
        Arc::new(Self { record: Mutex::new(record), cancelled: CancellationToken::new() })
    }

    /// Returns the current state.
    pub(crate) fn record(&self) -> BatchRecord {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BatchRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Batches {
    /// Opens the folder of files and batches. Returns `None` if none is configured.
    pub(crate) fn open(config: &FileConfig) -> mlx_core::Result<Option<Arc<Self>>> {
        let Some(folder) = &config.files_dir else { return Ok(None) };
        let files = FileStore::open(folder, config.files_size)?;
        Ok(Some(Arc::new(Self::read(Arc::new(files), config.batch_lines))))
    }

    /// Reads the batches in the folder of the files.
    fn read(files: Arc<FileStore>, lines: usize) -> Self {
        let records = files::records::<BatchRecord>(&files.path(""), "batch_");
        let unfinished = records.iter().filter(|record| !record.status.has_ended());
        files.remove_incomplete(&unfinished.flat_map(BatchRecord::result_ids).collect::<HashSet<_>>());
        let all = records.into_iter().map(|record| (record.id.clone(), Batch::new(record))).collect();
        let running = Semaphore::new(MAX_RUNNING);
        Self {
            files,
            all: Mutex::new(all),
            line_count: lines,
            lines: Arc::new(Semaphore::new(lines)),
            running,
        }
    }

    /// Returns the batch with this id, if it belongs to the client.
    pub(crate) fn get(&self, id: &str, client: Client) -> Result<Arc<Batch>, ApiError> {
        let batch = self.all().get(id).cloned().filter(|batch| batch.lock().client == Some(client));
        batch.ok_or_else(|| {
            ApiError::new(StatusCode::NOT_FOUND, "batch_not_found", format!("no batch {id:?}"))
        })
    }

    /// Returns the batches of a client, oldest first.
    pub(crate) fn list(&self, client: Client) -> Vec<BatchRecord> {
        let all = self.all();
        let mut own: Vec<_> =
            all.values().map(|batch| batch.record()).filter(|it| it.client == Some(client)).collect();
        own.sort_by(|one, other| (one.created, &one.id).cmp(&(other.created, &other.id)));
        own
    }

    /// Returns the unfinished batch that reads a file.
    pub(crate) fn reader_of(&self, file: &str) -> Option<String> {
        let all = self.all();
        let reads = |batch: &&Arc<Batch>| {
            let record = batch.lock();
            record.input == file && !record.status.has_ended()
        };
        all.values().find(reads).map(|batch| batch.lock().id.clone())
    }

    /// Stores a new batch. It is on disk when this returns.
    pub(crate) fn insert(&self, record: BatchRecord) -> Result<Arc<Batch>, ApiError> {
        let mut all = self.all();
        if all.len() >= MAX_BATCHES {
            let ended = all.values().map(|batch| batch.record()).filter(|record| record.status.has_ended());
            let oldest = ended.min_by_key(|record| record.created);
            let oldest = oldest.ok_or_else(|| {
                ApiError::busy(format!("{MAX_BATCHES} batches are in progress or wait"), 60)
            })?;
            all.remove(&oldest.id);
            std::fs::remove_file(self.path(&oldest)).ok();
        }
        self.write(&record)?;
        let batch = Batch::new(record);
        all.insert(batch.lock().id.clone(), Arc::clone(&batch));
        Ok(batch)
    }

    /// Cancels a batch. Its running lines end, and its results so far stay.
    pub(crate) fn cancel(&self, batch: &Batch) -> Result<BatchRecord, ApiError> {
        let mut record = batch.lock();
        if record.status.has_ended() {
            let message = format!("the batch has ended; its status is {}", record.status.name());
            return Err(ApiError::new(StatusCode::CONFLICT, "batch_ended", message));
        }
        record.enter(Status::Cancelling);
        self.write(&record)?;
        batch.cancelled.cancel();
        Ok(record.clone())
    }

    /// Changes a batch, also on disk.
    fn change(&self, batch: &Batch, change: impl FnOnce(&mut BatchRecord)) -> Result<(), ApiError> {
        let mut record = batch.lock();
        change(&mut record);
        self.write(&record)
    }

    /// Returns the unfinished batches, oldest first.
    fn unfinished(&self) -> Vec<Arc<Batch>> {
        let mut all: Vec<_> =
            self.all().values().filter(|batch| !batch.lock().status.has_ended()).cloned().collect();
        all.sort_by_key(|batch| batch.lock().created);
        all
    }

    fn write(&self, record: &BatchRecord) -> Result<(), ApiError> {
        let path = self.path(record);
        let text = serde_json::to_vec(record).map_err(|error| Error::io(&path, error.into()));
        text.and_then(|text| write_privately(&path, &text).map_err(Error::from)).map_err(|error| {
            // The error names a path, so the client does not get it.
            tracing::error!(%error, "a batch cannot be written");
            ApiError::failed("the folder of files cannot be used; see the server's log")
        })
    }

    fn path(&self, record: &BatchRecord) -> std::path::PathBuf {
        self.files.path(&format!("{}.json", record.id))
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Batch>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
