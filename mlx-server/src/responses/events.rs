//! The events of a stored response. Clients can read them starting at any event number.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::unfold;
use tokio::sync::watch;

use crate::error::ApiError;

/// The events of a response.
pub(crate) struct EventLog {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    events: Vec<Bytes>,
    /// The latest keep-alive, and the number of keep-alives so far.
    keep_alive: (Bytes, usize),
    has_ended: bool,
    error: Option<ApiError>,
}

impl EventLog {
    /// Returns an empty log.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: watch::Sender::new(()) })
    }

    /// Adds the next event.
    pub(crate) fn add(&self, event: Bytes) {
        self.change(|state| state.events.push(event));
    }

    /// Sends a keep-alive to all current readers.
    pub(crate) fn add_keep_alive(&self, bytes: Bytes) {
        self.change(|state| state.keep_alive = (bytes, state.keep_alive.1 + 1));
    }

    /// Marks the end of the events. `error` is set if the response failed.
    pub(crate) fn end(&self, error: Option<ApiError>) {
        self.change(|state| (state.has_ended, state.error) = (true, error));
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.send_replace(());
    }

    /// Waits until there is no reader after an interval of this length that started without one.
    pub(crate) async fn abandoned_for(&self, time: Duration) {
        loop {
            self.changed.closed().await;
            tokio::time::sleep(time).await;
            if self.changed.receiver_count() == 0 {
                return;
            }
        }
    }

    /// Returns a reader that starts at event number `from`.
    pub(crate) fn reader(self: &Arc<Self>, from: usize) -> Reader {
        Reader { log: Arc::clone(self), changed: self.changed.subscribe(), next: from, keep_alives: 0 }
    }

    /// Returns the size of all events in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.events.iter().map(Bytes::len).sum()
    }
}

/// A reader of the events, one per client.
pub(crate) struct Reader {
    log: Arc<EventLog>,
    changed: watch::Receiver<()>,
    next: usize,
    keep_alives: usize,
}

impl Reader {
    /// Returns the remaining events as a response body.
    pub(crate) fn body(self) -> Body {
        Body::from_stream(unfold(self, |mut reader| async move {
            let bytes = reader.next().await?;
            Some((Ok::<_, Infallible>(bytes), reader))
        }))
    }

    /// Waits for the end. Returns the error if the response failed.
    pub(crate) async fn end(mut self) -> Result<(), ApiError> {
        loop {
            self.changed.borrow_and_update();
            {
                let state = self.log.state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.has_ended {
                    return state.error.clone().map_or(Ok(()), Err);
                }
            }
            if self.changed.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.changed.borrow_and_update();
            {
                let state = self.log.state.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(bytes) = state.events.get(self.next) {
                    self.next += 1;
                    self.keep_alives = state.keep_alive.1;
                    return Some(bytes.clone());
                }
                if state.has_ended {
                    return None;
                }
                if state.keep_alive.1 > self.keep_alives {
                    self.keep_alives = state.keep_alive.1;
                    return Some(state.keep_alive.0.clone());
                }
            }
            self.changed.changed().await.ok()?;
        }
    }
}
