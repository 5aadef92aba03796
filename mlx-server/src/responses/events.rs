//! The events of one stored response: made whether a client reads them or not, and read from any number on.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::unfold;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::answer::AnswerWriter;
use crate::error::ApiError;
use crate::stream::{Feed, Sent};

/// The events of a response.
pub(crate) struct EventLog {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    events: Vec<Bytes>,
    /// The latest sign of life, and how many there were.
    sign: (Bytes, usize),
    ended: bool,
    error: Option<ApiError>,
}

/// How long a response is computed that nobody reads.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unread {
    /// For so long.
    For(Duration),
    /// To its end.
    ToItsEnd,
}

impl EventLog {
    /// Makes the events of an answer in the background. They are read from a reader that was there before, so that the answer is not
    /// unread from the start.
    pub(crate) fn follow<W: AnswerWriter>(
        feed: Feed<W>,
        unread: Unread,
        cancelled: CancellationToken,
    ) -> (Arc<Self>, Reader) {
        let log = Arc::new(Self { state: Mutex::default(), changed: watch::Sender::new(()) });
        let reader = log.reader(0);
        tokio::spawn(Arc::clone(&log).run(feed, unread, cancelled));
        (log, reader)
    }

    async fn run<W: AnswerWriter>(
        self: Arc<Self>,
        mut feed: Feed<W>,
        unread: Unread,
        cancelled: CancellationToken,
    ) {
        let mut left = pin!(self.left(unread));
        loop {
            let sent = tokio::select! {
                biased;
                () = cancelled.cancelled() => { feed.fail(ApiError::cancelled()); feed.next().await }
                () = &mut left => { feed.fail(ApiError::cancelled()); feed.next().await }
                sent = feed.next() => sent,
            };
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            match sent {
                Some(Sent::Event(bytes)) => state.events.push(bytes),
                Some(Sent::SignOfLife(bytes)) => state.sign = (bytes, state.sign.1 + 1),
                None => {
                    state.ended = true;
                    state.error = feed.error().cloned();
                }
            }
            let ended = state.ended;
            drop(state);
            self.changed.send_replace(());
            if ended {
                return;
            }
        }
    }

    /// Waits until nobody has read for too long.
    async fn left(&self, unread: Unread) {
        let Unread::For(patience) = unread else { return std::future::pending().await };
        loop {
            self.changed.closed().await;
            tokio::time::sleep(patience).await;
            if self.changed.receiver_count() == 0 {
                return;
            }
        }
    }

    /// A reader of the events from this number on.
    pub(crate) fn reader(self: &Arc<Self>, from: usize) -> Reader {
        Reader { log: Arc::clone(self), changed: self.changed.subscribe(), next: from, signs: 0 }
    }

    /// Bytes of all events.
    pub(crate) fn bytes(&self) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.events.iter().map(Bytes::len).sum()
    }
}

/// A client that reads events.
pub(crate) struct Reader {
    log: Arc<EventLog>,
    changed: watch::Receiver<()>,
    next: usize,
    signs: usize,
}

impl Reader {
    /// The rest of the events as the body of an answer.
    pub(crate) fn body(self) -> Body {
        Body::from_stream(unfold(self, |mut reader| async move {
            let bytes = reader.next().await?;
            Some((Ok::<_, Infallible>(bytes), reader))
        }))
    }

    /// Waits for the end, and gives the error if it failed.
    pub(crate) async fn end(mut self) -> Result<(), ApiError> {
        loop {
            self.changed.borrow_and_update();
            {
                let state = self.log.state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.ended {
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
                    self.signs = state.sign.1;
                    return Some(bytes.clone());
                }
                if state.ended {
                    return None;
                }
                if state.sign.1 > self.signs {
                    self.signs = state.sign.1;
                    return Some(state.sign.0.clone());
                }
            }
            self.changed.changed().await.ok()?;
        }
    }
}
