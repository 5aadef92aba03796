//! Stored responses. They outlive their request, in memory and in the journal; clients can fetch, follow, continue and delete them.
//! Invariant: only [`Responses`] changes the store and the journal, so both have the same responses.

mod chat;
pub(crate) mod events;
pub(crate) mod journal;
mod mcp;
mod produce;
mod rounds;
pub(crate) mod run;
pub(crate) mod store;

use std::sync::Arc;

use mlx_core::engine::Client;
use mlx_json::Value;
use mlx_options::ByteSize;
use serde_json::json;
use tokio::task::spawn_blocking;

use crate::error::ApiError;
use journal::{Journal, Record};
use store::{ResponseStore, SharedItem, StoredResponse};

/// The stored responses of all clients.
pub(crate) struct Responses {
    store: ResponseStore,
    journal: Option<Arc<Journal>>,
}

impl Responses {
    /// Creates an empty store of at most `limit` bytes, with the journal, if there is one.
    pub(crate) fn new(limit: ByteSize, journal: Option<Journal>) -> Self {
        Self { store: ResponseStore::new(limit), journal: journal.map(Arc::new) }
    }

    /// Returns true if responses survive a crash.
    pub(crate) fn has_journal(&self) -> bool {
        self.journal.is_some()
    }

    /// Returns the response with this id, if the client may see it.
    pub(crate) fn get(&self, id: &str, client: Client) -> Result<Arc<StoredResponse>, ApiError> {
        self.store.get(id, client)
    }

    /// Returns the item with this id from the client's responses.
    pub(crate) fn item(&self, id: &str, client: Client) -> Option<SharedItem> {
        self.store.item(id, client)
    }

    /// Writes a response to the journal before it is computed.
    async fn record(&self, record: Record) -> Result<(), ApiError> {
        let Some(journal) = self.journal.clone() else { return Ok(()) };
        match spawn_blocking(move || journal.begin(&record)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                // The error names a path, so the client does not get it.
                tracing::error!(%error, "the journal cannot be written");
                Err(ApiError::failed("the journal cannot be written; see the server's log"))
            }
            Err(_) => Err(ApiError::failed("writing the journal was interrupted")),
        }
    }

    /// Stores the initial state of a response.
    fn begin(&self, response: &Arc<StoredResponse>, value: Value) {
        response.set(value);
        self.store.begin(response);
    }

    /// Stores the end of a response, unless it was deleted. The journal is written in the background. If that fails, the server recomputes the
    /// response after a restart.
    fn end(&self, response: &Arc<StoredResponse>, value: Value) {
        response.set(value);
        self.store.end(response);
        let Some(journal) = self.journal.clone() else { return };
        let (id, value) = (response.id.clone(), response.response());
        spawn_blocking(move || {
            if let Err(error) = journal.end(&id, &value) {
                tracing::error!(id, %error, "the journal cannot be written");
            }
        });
    }

    /// Allows evicting a response that cannot be recomputed now. It stays in the journal for the next start.
    fn give_up(&self, response: &Arc<StoredResponse>) {
        self.store.end(response);
    }

    /// Deletes a response of this client from memory and from the journal, and cancels its computation.
    pub(crate) async fn delete(&self, id: &str, client: Client) -> Result<(), ApiError> {
        let stored = self.get(id, client);
        if let Ok(stored) = &stored {
            // Cancel the computation even if the file cannot be removed.
            stored.cancelled.cancel();
        }
        let in_journal = self.delete_from_journal(id, client).await?;
        match stored {
            Ok(stored) => self.store.delete(&stored),
            // The response was evicted from memory, but the journal had it.
            Err(error) if !in_journal => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// Returns true if the journal had the response.
    async fn delete_from_journal(&self, id: &str, client: Client) -> Result<bool, ApiError> {
        let Some(journal) = self.journal.clone() else { return Ok(false) };
        let owned_id = id.to_owned();
        match spawn_blocking(move || journal.remove(&owned_id, client)).await {
            Ok(Ok(in_journal)) => Ok(in_journal),
            failed => {
                tracing::error!(id, ?failed, "a response could not be removed from the journal");
                let message = "the response could not be removed from the journal; it was not deleted";
                Err(ApiError::failed(message))
            }
        }
    }

    /// Stores the responses of the journal. Returns the unfinished ones.
    async fn restore(&self) -> Vec<(Record, Arc<StoredResponse>)> {
        let Some(journal) = self.journal.clone() else { return Vec::new() };
        let Ok(contents) = spawn_blocking(move || journal.load()).await else { return Vec::new() };
        for (record, response) in contents.finished {
            let stored = StoredResponse::from_record(&record);
            stored.set(response);
            self.store.end(&stored);
        }
        let restore = |record: Record| {
            let value = json!({"id": record.id, "object": "response", "created_at": record.created, "status": "in_progress", "output": []});
            let stored = StoredResponse::from_record(&record);
            self.begin(&stored, value.into());
            (record, stored)
        };
        contents.unfinished.into_iter().map(restore).collect()
    }
}
