//! The stay of models in memory: loading and unloading on request, and unloading after a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::entry::Entry;
use super::{KeepAlive, Models};
use crate::error::ApiError;
use crate::protocol::openai::models::ModelObject;

/// The maximum time between two checks for models to unload.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

impl Models {
    /// Loads a model, with its time without a request and its pin if they are given.
    pub(crate) async fn load_by_name(
        self: &Arc<Self>,
        name: &str,
        keep_alive: Option<KeepAlive>,
        pin: Option<bool>,
    ) -> Result<ModelObject, ApiError> {
        let served = self.find(Some(name)).await?;
        let entry = &served.entry;
        let _lease = self.lease_entry(Arc::clone(entry)).await?;
        match keep_alive {
            Some(keep_alive) => entry.residence.keep(keep_alive),
            None => entry.residence.stay(),
        }
        if let Some(pin) = pin {
            entry.residence.pin(pin);
        }
        Ok(served.object(self.idle))
    }

    /// Unloads a model, and removes its pin. If it is in use or loading, it is unloaded after its last answer.
    pub(crate) async fn unload_by_name(&self, name: &str) -> Result<ModelObject, ApiError> {
        let served = self.find(Some(name)).await?;
        let entry = &served.entry;
        entry.residence.pin(false);
        entry.residence.keep(KeepAlive::For(Duration::ZERO));
        self.memory.unload(&[Arc::clone(entry)], "a client asked for it", |_| true).await;
        if entry.is_absent() {
            entry.residence.reset();
        }
        Ok(served.object(self.idle))
    }

    /// Sets the time without a request of a known model.
    pub(crate) fn keep(&self, name: Option<&str>, keep_alive: KeepAlive) {
        let entry = match name {
            Some(name) => match self.profiles.find(name) {
                Some(profile) => self.known_model_of(&profile),
                None => self.catalog.known(name),
            },
            None => self.catalog.given().first().cloned(),
        };
        if let Some(entry) = entry {
            entry.residence.keep(keep_alive);
            self.memory.released.notify();
        }
    }

    /// Returns this name, or else that of the first model.
    pub(crate) fn first_name(&self, name: Option<&str>) -> String {
        let first = || self.catalog.given().first().map(|entry| entry.name().to_owned());
        name.map(str::to_owned).or_else(first).unwrap_or_default()
    }

    /// The server's time without a request, for models without their own.
    pub(crate) fn idle(&self) -> Option<Duration> {
        self.idle
    }

    /// Unloads models at the ends of their stays, in an endless loop.
    pub(crate) async fn reap(self: Arc<Self>) {
        loop {
            let (all, now) = (self.catalog.all(), Instant::now());
            // A model in use notifies when its last lease ends.
            let end =
                |entry: &Entry| entry.idle_since().and_then(|since| entry.residence.end(since, self.idle));
            if all.iter().any(|entry| end(entry).is_some_and(|end| end <= now)) {
                self.memory
                    .unload(&all, "it was idle", |entry| end(entry).is_some_and(|end| end <= now))
                    .await;
            }
            let next = all.iter().filter_map(|entry| end(entry)).min();
            let pause =
                next.map_or(LONGEST_PAUSE, |end| end.saturating_duration_since(now).min(LONGEST_PAUSE));
            drop(all);
            tokio::select! {
                () = tokio::time::sleep(pause.max(Duration::from_millis(10))) => {}
                () = self.memory.released.next() => {}
            }
        }
    }
}
