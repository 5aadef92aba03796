//! The memory budget that all models share. Invariant: the budgets of all loaded and loading models together do not exceed it.
//! Different models load concurrently; only reserving memory is serialized.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::timeout;

use super::catalog::Catalog;
use super::engine_key::EngineKey;
use super::entry::Entry;
use super::released::Released;
use crate::error::ApiError;

/// The memory of all models.
pub(super) struct ModelMemory {
    /// The memory for all models together, in bytes.
    budget: u64,
    /// The number of served folders, each with an equal share.
    folders: usize,
    /// Held while memory is reserved and models are unloaded, but not during a load.
    reserving: tokio::sync::Mutex<()>,
    /// The engines that are starting, with their budgets in bytes.
    loading: Mutex<Vec<(EngineKey, u64)>>,
    /// Notified when a load ends.
    load_ended: Notify,
    pub(super) released: Arc<Released>,
}

/// Memory reserved for a loading model. Dropping it ends the reservation; a loaded model counts its budget itself.
pub(super) struct Reservation {
    memory: Arc<ModelMemory>,
    key: EngineKey,
    reserved: u64,
}

impl Reservation {
    /// Returns the engine and its budget in bytes.
    pub(super) fn key_and_bytes(&self) -> (EngineKey, u64) {
        (self.key.clone(), self.reserved)
    }

    /// Returns the budget of the model in bytes.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }
}

/// The memory requirements of a model to load.
pub(super) struct Demand {
    /// The engine to start.
    pub(super) key: EngineKey,
    /// The minimum number of bytes.
    pub(super) needed: u64,
    /// The maximum number of bytes.
    pub(super) limit: Option<u64>,
}

/// The result of an attempt to reserve memory.
enum Attempt {
    Reserved(u64),
    /// Memory is short, but a load in progress may free some when it ends.
    RetryAfterLoad,
    /// All loaded models are in use. `is_final` is true if all of them are pinned.
    InUse {
        is_final: bool,
    },
}

/// The end of the time that a load may wait for a model in use.
#[derive(Clone, Copy)]
pub(super) struct Deadline(Instant);

impl Deadline {
    /// Returns the deadline of a load that a client requests now.
    pub(super) fn for_load() -> Self {
        Self(Instant::now() + MAX_WAIT)
    }

    fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// The maximum time that a load waits for a model in use. Most answers take longer, but a client that has read its answer may ask for another
/// model before its lease has ended.
const MAX_WAIT: Duration = Duration::from_secs(30);

impl ModelMemory {
    /// Creates a budget in bytes for the models of this many folders.
    pub(super) fn new(budget: u64, folders: usize) -> Arc<Self> {
        Arc::new(Self {
            budget,
            folders: folders.max(1),
            reserving: tokio::sync::Mutex::default(),
            loading: Mutex::default(),
            load_ended: Notify::new(),
            released: Arc::default(),
        })
    }

    /// Reserves memory for `entry`. First unloads `entry` itself if its engine has stopped or its files have changed. Then unloads the least
    /// recently used models until enough memory is free.
    pub(super) async fn reserve(
        self: &Arc<Self>,
        catalog: &Catalog,
        entry: &Entry,
        demand: &Demand,
        deadline: Deadline,
    ) -> Result<Reservation, ApiError> {
        loop {
            let (load_ended, released) = (self.load_ended.notified(), self.released.next_change());
            match self.try_reserve(catalog, entry, demand).await {
                Attempt::Reserved(reserved) => {
                    let key = demand.key.clone();
                    return Ok(Reservation { memory: Arc::clone(self), key, reserved });
                }
                Attempt::RetryAfterLoad => tokio::select! {
                    () = load_ended => {}
                    () = released => {}
                },
                Attempt::InUse { is_final } => {
                    let wait = if is_final { Duration::ZERO } else { deadline.left() };
                    if timeout(wait, released).await.is_err() {
                        let message =
                            "all loaded models are in use, and there is not enough memory for another model";
                        return Err(ApiError::busy(message, 5));
                    }
                }
            }
        }
    }

    async fn try_reserve(&self, catalog: &Catalog, entry: &Entry, demand: &Demand) -> Attempt {
        let _guard = self.reserving.lock().await;
        entry.unload("its engine has stopped or its files have changed").await;
        loop {
            let entries = catalog.all();
            let others = self.reserved(&entries);
            let shared = others.iter().find(|(other, _)| *other == demand.key).map(|(_, bytes)| *bytes);
            let free = self.budget.saturating_sub(others.iter().map(|(_, bytes)| bytes).sum());
            if let Some(reserved) = shared.or_else(|| self.share(demand, free)) {
                self.loading().push((demand.key.clone(), reserved));
                return Attempt::Reserved(reserved);
            }
            let unused = entries.iter().filter_map(|other| Some((other.idle_since()?, other)));
            // Unload nothing if the model would not fit even after that.
            let freeable = unused_bytes(&others, &self.used(&entries));
            let oldest = unused
                .min_by_key(|(since, _)| *since)
                .filter(|_| self.share(demand, free + freeable).is_some());
            if let Some((_, oldest)) = oldest {
                oldest.unload("another model needs the memory").await;
            } else if self.loading().is_empty() {
                let used = entries.iter().filter(|entry| entry.is_loaded());
                return Attempt::InUse { is_final: used.into_iter().all(|entry| entry.is_pinned()) };
            } else {
                return Attempt::RetryAfterLoad;
            }
        }
    }

    /// Unloads the models for which `is_idle` returns true.
    pub(super) async fn unload(
        &self,
        entries: &[Arc<Entry>],
        reason: &str,
        is_idle: impl Fn(&Entry) -> bool,
    ) {
        let _guard = self.reserving.lock().await;
        for entry in entries.iter().filter(|entry| is_idle(entry)) {
            entry.unload(reason).await;
        }
    }

    /// Returns the budget of a model if `free` bytes are free, or `None` if the model needs more.
    fn share(&self, demand: &Demand, free: u64) -> Option<u64> {
        let limit = demand.limit.unwrap_or(u64::MAX);
        // A model that needs more than the whole budget gets all of it. Its engine then reports the missing memory.
        let needed = demand.needed.min(limit).min(self.budget);
        let fair = (self.budget / self.folders as u64).max(needed);
        (needed <= free).then(|| fair.min(free).min(limit))
    }

    /// Returns the budgets of all engines that run or start.
    fn reserved(&self, entries: &[Arc<Entry>]) -> Vec<(EngineKey, u64)> {
        let mut engines: Vec<(EngineKey, u64)> =
            entries.iter().filter_map(|it| it.reserved_bytes()).collect();
        engines.extend(self.loading().iter().cloned());
        engines.sort_unstable();
        engines.dedup_by(|one, other| one.0 == other.0);
        engines
    }

    /// Returns the engines that start or are in use.
    fn used(&self, entries: &[Arc<Entry>]) -> Vec<EngineKey> {
        let used = entries.iter().filter(|entry| entry.idle_since().is_none());
        let used = used.filter_map(|entry| Some(entry.reserved_bytes()?.0));
        used.chain(self.loading().iter().map(|(key, _)| key.clone())).collect()
    }

    fn loading(&self) -> MutexGuard<'_, Vec<(EngineKey, u64)>> {
        self.loading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the bytes that unloading all unused engines would free.
fn unused_bytes(reserved: &[(EngineKey, u64)], used: &[EngineKey]) -> u64 {
    reserved.iter().filter(|(key, _)| !used.contains(key)).map(|(_, bytes)| bytes).sum()
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut loading = self.memory.loading();
        if let Some(index) = loading.iter().position(|(key, _)| *key == self.key) {
            loading.swap_remove(index);
        }
        drop(loading);
        self.memory.load_ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_an_equal_part_or_what_it_needs_of_what_is_left() {
        let share = |folders, needed, free, limit| {
            let demand = Demand { key: EngineKey::default(), needed, limit };
            ModelMemory::new(100, folders).share(&demand, free)
        };
        assert_eq!(share(1, 20, 100, None), Some(100), "a single folder gets all of it");
        assert_eq!(share(4, 20, 100, None), Some(25));
        assert_eq!(share(4, 40, 75, None), Some(40), "a large model gets the memory that it needs");
        assert_eq!(share(4, 20, 22, None), Some(22), "less than its share is free");
        assert_eq!(share(4, 23, 22, None), None, "others must be unloaded");
        assert_eq!(share(4, 200, 100, None), Some(100), "as the only model it may try");
        assert_eq!(share(4, 200, 99, None), None);
        assert_eq!(share(1, 20, 100, Some(30)), Some(30));
        assert_eq!(share(1, 50, 40, Some(30)), Some(30), "a limit below its needs holds");
    }

    #[test]
    fn only_unused_engines_can_be_freed() {
        let key = |folder: &str| EngineKey { folder: folder.into(), ..EngineKey::default() };
        let reserved = [("a", 30), ("b", 20), ("c", 10)].map(|(folder, bytes)| (key(folder), bytes));
        assert_eq!(unused_bytes(&reserved, &[key("b")]), 40);
        assert_eq!(unused_bytes(&reserved, &[]), 60);
    }

    #[test]
    fn all_promises_together_never_exceed_the_budget() {
        for folders in 1..6 {
            let memory = ModelMemory::new(1000, folders);
            for first in (0..1200).step_by(37) {
                let (mut free, mut reserved) = (1000, 0);
                for needed in [first, 300, 10, 170, 90, 400] {
                    let demand = Demand { key: EngineKey::default(), needed, limit: None };
                    let share = memory.share(&demand, free).unwrap_or(0);
                    (free, reserved) = (free - share, reserved + share);
                }
                assert!(reserved <= 1000, "{reserved} of 1000");
            }
        }
    }
}
