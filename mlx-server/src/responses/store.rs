//! The responses in memory, so that clients can fetch, continue and reference them. Invariants: memory is bounded, and the least recently
//! used response is evicted first; a client sees only its own responses.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlx_core::engine::Client;
use mlx_json::Value;
use mlx_options::ByteSize;
use tokio_util::sync::CancellationToken;

use super::events::EventLog;
use super::journal::Record;
use crate::error::ApiError;

/// An item of a conversation. Several responses may share it.
pub(crate) type SharedItem = Arc<Value>;

/// The responses in memory.
pub(crate) struct ResponseStore {
    inner: Mutex<Inner>,
    limit: ByteSize,
}

#[derive(Default)]
struct Inner {
    responses: HashMap<String, Entry>,
    bytes: u64,
    clock: u64,
}

struct Entry {
    response: Arc<StoredResponse>,
    bytes: u64,
    used: u64,
    has_ended: bool,
}

/// A stored response.
pub(crate) struct StoredResponse {
    pub(crate) id: String,
    /// The owner of the response.
    pub(crate) client: Client,
    /// The conversation before the answer.
    pub(crate) items: Vec<SharedItem>,
    /// The number of items of the request. They are the last ones.
    pub(crate) input_len: usize,
    /// Cancels the response.
    pub(crate) cancelled: CancellationToken,
    /// The current response object, and its output items.
    state: Mutex<(Arc<Value>, Vec<SharedItem>)>,
    /// The events of the response.
    events: Mutex<Option<Arc<EventLog>>>,
    /// True after its client deleted the response. Then the store rejects it, even while its computation still runs.
    is_deleted: AtomicBool,
}

impl StoredResponse {
    /// Creates a running response.
    pub(crate) fn new(id: String, client: Client, items: Vec<SharedItem>, input_len: usize) -> Arc<Self> {
        Arc::new(Self {
            id,
            client,
            items,
            input_len,
            cancelled: CancellationToken::new(),
            state: Mutex::new((Arc::new(Value::Null), Vec::new())),
            events: Mutex::default(),
            is_deleted: AtomicBool::new(false),
        })
    }

    /// Creates a response from a record of the journal.
    pub(crate) fn from_record(record: &Record) -> Arc<Self> {
        let items = record.items.iter().cloned().map(Arc::new).collect();
        // The journal returns only records with a client.
        let client = record.client.unwrap_or_default();
        Self::new(record.id.clone(), client, items, record.input_len)
    }

    /// Returns the current response object.
    pub(crate) fn response(&self) -> Arc<Value> {
        Arc::clone(&locked(&self.state).0)
    }

    /// Returns the conversation including the answer.
    pub(crate) fn conversation(&self) -> Vec<SharedItem> {
        self.items.iter().chain(&locked(&self.state).1).cloned().collect()
    }

    /// Returns the events, if the response has been followed since the server started.
    pub(crate) fn events(&self) -> Option<Arc<EventLog>> {
        locked(&self.events).clone()
    }

    /// Sets the event log.
    pub(crate) fn set_events(&self, events: Arc<EventLog>) {
        *locked(&self.events) = Some(events);
    }

    /// Sets the response object and its output items.
    pub(crate) fn set(&self, response: Value) {
        let output = response["output"].as_array().into_iter().flatten();
        let output = output.cloned().map(Arc::new).collect();
        *locked(&self.state) = (Arc::new(response), output);
    }

    /// Returns true if the client has deleted the response.
    pub(crate) fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Acquire)
    }

    fn find_item(&self, id: &str) -> Option<SharedItem> {
        let is_it = |item: &&SharedItem| item["id"] == id;
        locked(&self.state).1.iter().chain(&self.items).find(is_it).cloned()
    }

    fn bytes(&self) -> u64 {
        let (response, output) = &*locked(&self.state);
        let input = &self.items[self.items.len() - self.input_len..];
        let items: usize = input.iter().chain(output).map(|item| size(item)).sum();
        let events = locked(&self.events).as_ref().map_or(0, |events| events.bytes());
        (size(response) + items + events + size_of_val(self.items.as_slice())) as u64
    }
}

impl ResponseStore {
    /// Creates an empty store of at most `limit` bytes.
    pub(crate) fn new(limit: ByteSize) -> Self {
        Self { inner: Mutex::default(), limit }
    }

    /// Stores a running response. It is not evicted before its end, so that it can be followed, cancelled and deleted.
    pub(crate) fn begin(&self, response: &Arc<StoredResponse>) {
        self.insert(response, false);
    }

    /// Stores a finished response, and updates its size.
    pub(crate) fn end(&self, response: &Arc<StoredResponse>) {
        self.insert(response, true);
    }

    /// Stores a response unless it was deleted. Evicts the least recently used finished responses.
    fn insert(&self, response: &Arc<StoredResponse>, has_ended: bool) {
        let bytes = response.bytes();
        let mut inner = locked(&self.inner);
        if response.is_deleted() {
            return;
        }
        inner.clock += 1;
        let entry = Entry { response: Arc::clone(response), bytes, used: inner.clock, has_ended };
        let old = inner.responses.insert(response.id.clone(), entry);
        inner.bytes = inner.bytes + bytes - old.map_or(0, |old| old.bytes);
        while inner.bytes > self.limit.0 {
            let Some(id) = inner.least_recently_used() else { break };
            inner.remove(&id);
        }
    }

    /// Returns the response with this id, if it belongs to the client.
    pub(crate) fn get(&self, id: &str, client: Client) -> Result<Arc<StoredResponse>, ApiError> {
        let mut inner = locked(&self.inner);
        inner.clock += 1;
        let now = inner.clock;
        let entry = inner.responses.get_mut(id).filter(|entry| entry.response.client == client);
        let entry = entry.ok_or_else(|| ApiError::no_response(id))?;
        entry.used = now;
        Ok(Arc::clone(&entry.response))
    }

    /// Deletes a response permanently, and cancels its computation.
    pub(crate) fn delete(&self, response: &StoredResponse) {
        let mut inner = locked(&self.inner);
        response.is_deleted.store(true, Ordering::Release);
        inner.remove(&response.id);
        drop(inner);
        response.cancelled.cancel();
    }

    /// Returns the item with this id from the client's responses.
    pub(crate) fn item(&self, id: &str, client: Client) -> Option<SharedItem> {
        let inner = locked(&self.inner);
        let mut visible = inner.responses.values().filter(|entry| entry.response.client == client);
        visible.find_map(|entry| entry.response.find_item(id))
    }
}

impl Inner {
    /// Returns the id of the least recently used finished response.
    fn least_recently_used(&self) -> Option<String> {
        let ended = self.responses.iter().filter(|(_, entry)| entry.has_ended);
        ended.min_by_key(|(_, entry)| entry.used).map(|(id, _)| id.clone())
    }

    fn remove(&mut self, id: &str) {
        if let Some(entry) = self.responses.remove(id) {
            self.bytes -= entry.bytes;
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the approximate size of a value in memory, in bytes.
fn size(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::String(text) => text.len(),
            Value::Array(list) => list.iter().map(size).sum(),
            Value::Object(object) => object.iter().map(|(key, value)| key.len() + 64 + size(value)).sum(),
            _ => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    fn stored(client: u64, text: &str) -> Arc<StoredResponse> {
        let item = Arc::new(json!({"id": format!("msg_{text}"), "text": text.repeat(1000)}));
        let stored = StoredResponse::new(text.into(), Client(client), vec![item], 1);
        stored.set(json!({"output": [{"id": format!("rs_{text}")}]}));
        stored
    }

    #[test]
    fn the_least_recently_used_response_gives_way() {
        let store = ResponseStore::new(ByteSize(3 * stored(1, "a").bytes()));
        for id in ["a", "b", "c"] {
            store.end(&stored(1, id));
        }
        store.get("a", Client(1)).expect("it is stored");
        store.end(&stored(1, "d"));
        let found = ["a", "b", "c", "d"].map(|id| store.get(id, Client(1)).is_ok());
        assert_eq!(found, [true, false, true, true]);
        let deleted = store.get("a", Client(1)).expect("it is stored");
        store.delete(&deleted);
        // The computation ends after the response was deleted.
        store.end(&deleted);
        assert!(store.get("a", Client(1)).is_err());
        assert!(store.item("rs_c", Client(1)).is_some() && store.item("msg_a", Client(1)).is_none());
    }

    #[test]
    fn a_response_that_is_computed_stays() {
        let store = ResponseStore::new(ByteSize(stored(1, "a").bytes()));
        store.begin(&stored(1, "a"));
        for id in ["b", "c"] {
            store.end(&stored(1, id));
        }
        let found = ["a", "b", "c"].map(|id| store.get(id, Client(1)).is_ok());
        assert_eq!(found, [true, false, false]);
    }

    #[test]
    fn a_client_sees_its_own_responses_only() {
        let store = ResponseStore::new(ByteSize(1 << 20));
        store.end(&stored(1, "a"));
        assert_eq!(store.get("a", Client(2)).err().map(|error| error.status().as_u16()), Some(404));
        assert!(store.item("rs_a", Client(2)).is_none());
    }
}
