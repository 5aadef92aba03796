//! Named API keys with limits and usage, from a file that is read again when it changes. Invariant: a file that cannot be used never replaces
//! working keys, and no error shows a key.

mod allowance;
mod file;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
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
    named: RwLock<Arc<Vec<NamedKey>>>,
    /// The clients of named keys, which outlive a change of the file.
    holders: Mutex<BTreeMap<Client, Holder>>,
}

/// The use of a key.
struct Holder {
    name: String,
    may_run_tools: bool,
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
    pub(crate) fn open(path: Option<&Path>, min_length: usize) -> Result<Self, String> {
        let named = path.map(|path| read(path, min_length)).transpose()?.unwrap_or_default();
        Ok(Self {
            path: path.map(Path::to_owned),
            min_length,
            named: RwLock::new(Arc::new(named)),
            ..Self::default()
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
        let named = Arc::clone(&self.named.read().unwrap_or_else(PoisonError::into_inner));
        // Compares all keys in full, in constant time.
        let found = named.iter().fold(None, |found, key| {
            if bool::from(key.key.as_bytes().ct_eq(given)) { Some(key) } else { found }
        })?;
        let client = identities.of_key(given);
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        let holder = holders.entry(client).or_insert_with(|| Holder {
            name: String::new(),
            may_run_tools: false,
            totals: Totals::default(),
            allowance: Allowance::default(),
        });
        holder.name.clone_from(&found.name);
        holder.may_run_tools = found.tools;
        holder.allowance.limit(found.requests_per_minute, found.tokens_per_minute);
        if !counts {
            return Some(Ok(client));
        }
        Some(match holder.allowance.admit(Instant::now()) {
            Ok(()) => {
                holder.totals.requests += 1;
                Ok(client)
            }
            Err(wait) => {
                holder.totals.rejected += 1;
                Err(wait)
            }
        })
    }

    /// Returns true if a client may run tools: it has no named key, or one that may.
    pub(crate) fn may_run_tools(&self, client: Client) -> bool {
        let holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        holders.get(&client).is_none_or(|holder| holder.may_run_tools)
    }

    /// Counts the tokens of an answer, if its client has a named key.
    pub(crate) fn record(&self, client: Client, prompt_tokens: usize, completion_tokens: usize) {
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(holder) = holders.get_mut(&client) else { return };
        let (prompt, completion) = (prompt_tokens as u64, completion_tokens as u64);
        holder.totals.prompt_tokens += prompt;
        holder.totals.completion_tokens += completion;
        holder.allowance.spend(Instant::now(), prompt + completion);
    }

    /// Returns the use of a client's key, or that of all named keys if it has none of them.
    pub(crate) fn usage(&self, client: Client) -> Vec<KeyUsage> {
        let now = Instant::now();
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        let own = holders.contains_key(&client);
        let shown = holders.iter_mut().filter(|(other, _)| !own || **other == client);
        let mut all: Vec<KeyUsage> = shown.map(|(_, holder)| holder.usage(now)).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// Reads the file again whenever it changes, in an endless loop.
    pub(crate) async fn watch(&self) {
        let Some(path) = self.path.clone() else { return };
        let min_length = self.min_length;
        let mut watch = FileWatch::new(vec![path.clone()]).await;
        loop {
            watch.changed().await;
            let file = path.clone();
            match spawn_blocking(move || read(&file, min_length)).await {
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

impl Holder {
    fn usage(&mut self, now: Instant) -> KeyUsage {
        let (requests_last_minute, tokens_last_minute) = self.allowance.last_minute(now);
        let (requests_per_minute, tokens_per_minute) = self.allowance.limits();
        KeyUsage {
            name: self.name.clone(),
            totals: self.totals,
            requests_last_minute,
            tokens_last_minute,
            requests_per_minute,
            tokens_per_minute,
        }
    }
}
