//! Named API keys with limits and usage, from a file that is read again when it changes. Invariant: a file that cannot be used never replaces
//! working keys, and no error shows a key.

mod allowance;
mod file;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use mlx_core::engine::Client;
use serde::Serialize;
use subtle::ConstantTimeEq;
use tokio::task::spawn_blocking;
use utoipa::ToSchema;

use crate::client::Identities;
use crate::file_watch::FileWatch;
use allowance::Allowance;
use file::{NamedKey, read};

/// The named keys of a server.
#[derive(Default)]
pub(crate) struct Keys {
    path: Option<PathBuf>,
    /// The minimum length of a key in characters.
    min_length: usize,
    /// The keys of `--api-key`, which have no limits. A key cannot be both.
    unlimited: Vec<String>,
    named: RwLock<Arc<Vec<NamedKey>>>,
    uses: Mutex<Uses>,
}

/// The uses of keys. They outlive a change of the file.
#[derive(Default)]
struct Uses {
    /// By the name of the key, which may be replaced.
    by_name: BTreeMap<String, Use>,
    /// The names of the keys of clients.
    names: BTreeMap<Client, String>,
}

/// The use of a key.
#[derive(Default)]
struct Use {
    totals: Totals,
    allowance: Allowance,
}

/// The use of a key since the server started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Totals {
    /// Requests, without rejected ones.
    pub(crate) requests: u64,
    /// Requests that exceeded a limit.
    pub(crate) rejected: u64,
    /// Tokens of prompts.
    pub(crate) prompt_tokens: u64,
    /// Generated tokens.
    pub(crate) completion_tokens: u64,
}

/// The use of a key by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct KeyUsage {
    /// The name of the key.
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) totals: Totals,
    /// Requests in the last minute.
    pub(crate) requests_last_minute: u64,
    /// Tokens of prompts and answers in the last minute.
    pub(crate) tokens_last_minute: u64,
    /// The limit of requests in a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests_per_minute: Option<u64>,
    /// The limit of tokens in a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tokens_per_minute: Option<u64>,
}

impl Keys {
    /// Reads the file of named keys.
    pub(crate) fn open(path: Option<&Path>, min_length: usize, unlimited: &[String]) -> Result<Self, String> {
        let named = path.map(|path| read(path, min_length, unlimited)).transpose()?.unwrap_or_default();
        Ok(Self {
            path: path.map(Path::to_owned),
            min_length,
            unlimited: unlimited.to_vec(),
            named: RwLock::new(Arc::new(named)),
            uses: Mutex::default(),
        })
    }

    /// Returns the client of a key, and counts its request if it `counts`. `None` if no such key is named; an error is the time after which a
    /// limit allows the next request.
    pub(crate) fn admit(
        &self,
        given: &[u8],
        counts: bool,
        identities: &Identities,
    ) -> Option<Result<Client, Duration>> {
        let named = self.named();
        // Compares all keys in full, in constant time.
        let found = named.iter().fold(None, |found, key| {
            if bool::from(key.key.as_bytes().ct_eq(given)) { Some(key) } else { found }
        })?;
        let client = identities.of_key(given);
        Some(self.count(found, client, counts).map(|()| client).inspect_err(|_| {
            if let Some(key_use) = self.uses().by_name.get_mut(&found.name) {
                key_use.totals.rejected += 1;
            }
        }))
    }

    /// Counts a request that the server makes for a client, if it has a named key. An error is the time after which a limit allows it.
    pub(crate) fn admit_client(&self, client: Client, identities: &Identities) -> Result<(), Duration> {
        let named = self.named();
        let key = named.iter().find(|key| identities.of_key(key.key.as_bytes()) == client);
        key.map_or(Ok(()), |key| self.count(key, client, true))
    }

    /// Counts a request with a named key if it `counts`, unless a limit is reached.
    fn count(&self, found: &NamedKey, client: Client, counts: bool) -> Result<(), Duration> {
        let mut uses = self.uses();
        uses.names.insert(client, found.name.clone());
        let key_use = uses.by_name.entry(found.name.clone()).or_default();
        key_use.allowance.limit(found.requests_per_minute, found.tokens_per_minute);
        if counts {
            key_use.allowance.admit(Instant::now())?;
            key_use.totals.requests += 1;
        }
        Ok(())
    }

    /// Returns true if a client may run tools: it has no named key, or one that may.
    pub(crate) fn may_run_tools(&self, client: Client) -> bool {
        let Some(name) = self.uses().names.get(&client).cloned() else { return true };
        self.named().iter().any(|key| key.name == name && key.tools)
    }

    /// Counts tokens of a client's requests, if it has a named key.
    pub(crate) fn record(&self, client: Client, prompt_tokens: usize, completion_tokens: usize) {
        if self.path.is_none() {
            return;
        }
        let mut uses = self.uses();
        let Uses { by_name, names } = &mut *uses;
        let Some(key_use) = names.get(&client).and_then(|name| by_name.get_mut(name)) else { return };
        let (prompt, completion) = (prompt_tokens as u64, completion_tokens as u64);
        key_use.totals.prompt_tokens += prompt;
        key_use.totals.completion_tokens += completion;
        key_use.allowance.spend(Instant::now(), prompt + completion);
    }

    /// Returns the use of a client's key, or that of all named keys if it has none of them.
    pub(crate) fn usage(&self, client: Client) -> Vec<KeyUsage> {
        let (named, now) = (self.named(), Instant::now());
        let mut uses = self.uses();
        let own = uses.names.get(&client).cloned();
        let shown = named.iter().filter(|key| own.as_ref().is_none_or(|own| *own == key.name));
        let mut all: Vec<KeyUsage> =
            shown.map(|key| uses.by_name.entry(key.name.clone()).or_default().of(key, now)).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    fn named(&self) -> Arc<Vec<NamedKey>> {
        Arc::clone(&self.named.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the file again whenever it changes, in an endless loop.
    pub(crate) async fn watch(&self) {
        let Some(path) = self.path.clone() else { return };
        let mut watch = FileWatch::new(vec![path.clone()]).await;
        loop {
            watch.changed().await;
            let (file, min_length, unlimited) = (path.clone(), self.min_length, self.unlimited.clone());
            match spawn_blocking(move || read(&file, min_length, &unlimited)).await {
                Ok(Ok(named)) => {
                    let keys = named.len();
                    *self.named.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(named);
                    tracing::info!(keys, "the API keys were read again");
                }
                Ok(Err(reason)) => {
                    tracing::error!(
                        reason,
                        "the file of API keys has changed and cannot be used; the old keys stay"
                    );
                }
                Err(_) => tracing::error!("reading the API keys panicked; the old ones stay"),
            }
        }
    }
}

impl Use {
    fn of(&mut self, key: &NamedKey, now: Instant) -> KeyUsage {
        let (requests_last_minute, tokens_last_minute) = self.allowance.last_minute(now);
        KeyUsage {
            name: key.name.clone(),
            totals: self.totals,
            requests_last_minute,
            tokens_last_minute,
            requests_per_minute: key.requests_per_minute,
            tokens_per_minute: key.tokens_per_minute,
        }
    }
}
