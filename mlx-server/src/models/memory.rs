//! The memory that the models share. Invariant: a model that is being loaded counts with its weights, so that two loads never rely on
//! the same free bytes. Loads of different models run at once; only making room is serialized.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlx_options::ByteSize;
use tokio::sync::Notify;

use super::entry::Entry;
use crate::error::ApiError;

/// The memory of all models.
pub(super) struct ModelMemory {
    budget: Option<ByteSize>,
    /// Held while models are unloaded and room is reserved, never while one is loaded.
    making_room: tokio::sync::Mutex<()>,
    /// The models that are being loaded: their canonical folders and bytes.
    loading: Mutex<Vec<(PathBuf, u64)>>,
    /// Notified at the end of each load.
    load_ended: Notify,
}

/// Room for a model that is being loaded. Dropping it gives the room back: a loaded model counts with what it uses.
pub(super) struct Reservation {
    memory: Arc<ModelMemory>,
    folder: PathBuf,
}

/// The result of an attempt to make room.
enum Room {
    Reserved,
    /// The model would fit only beside what a load in progress leaves.
    AfterAnotherLoad,
}

impl ModelMemory {
    /// The memory within a budget, or without a limit.
    pub(super) fn new(budget: Option<ByteSize>) -> Arc<Self> {
        Arc::new(Self {
            budget,
            making_room: tokio::sync::Mutex::default(),
            loading: Mutex::default(),
            load_ended: Notify::new(),
        })
    }

    /// Reserves room for the weights of `entry`, whose canonical folder this is. Unloads `entry` itself if its engine has stopped or its
    /// files have changed, then the least recently used models until it fits.
    pub(super) async fn reserve(
        self: &Arc<Self>,
        entries: &[Arc<Entry>],
        entry: &Entry,
        folder: PathBuf,
    ) -> Result<Reservation, ApiError> {
        loop {
            let load_ended = self.load_ended.notified();
            match self.make_room(entries, entry, &folder).await? {
                Room::Reserved => return Ok(Reservation { memory: Arc::clone(self), folder }),
                Room::AfterAnotherLoad => load_ended.await,
            }
        }
    }

    async fn make_room(
        &self,
        entries: &[Arc<Entry>],
        entry: &Entry,
        folder: &Path,
    ) -> Result<Room, ApiError> {
        let _alone = self.making_room.lock().await;
        entry.unload("its engine has stopped or its files have changed").await;
        loop {
            let others = self.used(entries);
            // Two names of one folder share an engine, and so do its adapters.
            let is_shared = others.iter().any(|(other, _)| other == folder);
            let used: u64 = others.iter().map(|(_, bytes)| bytes).sum();
            let fits = self.budget.is_none_or(|budget| used + entry.weight_bytes() <= budget.0);
            if fits || is_shared {
                self.loading().push((folder.to_owned(), entry.weight_bytes()));
                return Ok(Room::Reserved);
            }
            let unused = entries.iter().filter_map(|other| Some((other.unused_since()?, other)));
            if let Some((_, oldest)) = unused.min_by_key(|(since, _)| *since) {
                oldest.unload("another model needs the memory").await;
            } else if self.loading().is_empty() {
                let message = "all models in memory are in use, and there is not enough memory for another";
                return Err(ApiError::busy(message, 5));
            } else {
                return Ok(Room::AfterAnotherLoad);
            }
        }
    }

    /// Unloads the models that `is_idle` selects.
    pub(super) async fn unload(&self, entries: &[Arc<Entry>], is_idle: impl Fn(&Entry) -> bool) {
        let _alone = self.making_room.lock().await;
        for entry in entries.iter().filter(|entry| is_idle(entry)) {
            entry.unload("it was idle").await;
        }
    }

    /// The bytes of every folder that is loaded or being loaded.
    fn used(&self, entries: &[Arc<Entry>]) -> Vec<(PathBuf, u64)> {
        let mut folders: Vec<(PathBuf, u64)> = entries.iter().filter_map(|it| it.loaded_bytes()).collect();
        folders.extend(self.loading().iter().cloned());
        folders.sort_unstable();
        // The larger number of one folder comes last.
        folders.reverse();
        folders.dedup_by(|one, other| one.0 == other.0);
        folders
    }

    fn loading(&self) -> MutexGuard<'_, Vec<(PathBuf, u64)>> {
        self.loading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut loading = self.memory.loading();
        if let Some(place) = loading.iter().position(|(folder, _)| *folder == self.folder) {
            loading.swap_remove(place);
        }
        drop(loading);
        self.memory.load_ended.notify_waiters();
    }
}
