//! Produces the events of a stored response in the background, with or without a reader.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::events::{EventLog, Reader};
use super::store::StoredResponse;
use crate::error::ApiError;
use crate::protocol::responses::writer::Writer;
use crate::state::AppState;
use crate::stream::{AnswerEvents, StreamItem};

/// The policy for a response without a reader.
#[derive(Debug, Clone, Copy)]
pub(super) enum AbandonPolicy {
    /// Cancel the response after this time.
    After(Duration),
    /// Compute the response to its end.
    Never,
}

/// Starts to produce the events. Returns a reader that already counts, so that the response is not abandoned immediately.
pub(super) fn produce(
    state: &AppState,
    stored: Arc<StoredResponse>,
    events: AnswerEvents<Writer>,
    policy: AbandonPolicy,
) -> Reader {
    let log = EventLog::new();
    let reader = log.reader(0);
    stored.set_events(Arc::clone(&log));
    tokio::spawn(run(state.clone(), stored, log, events, policy));
    reader
}

async fn run(
    state: AppState,
    stored: Arc<StoredResponse>,
    log: Arc<EventLog>,
    mut events: AnswerEvents<Writer>,
    policy: AbandonPolicy,
) {
    let abandoned = async {
        match policy {
            AbandonPolicy::After(time) => log.abandoned_for(time).await,
            AbandonPolicy::Never => std::future::pending().await,
        }
    };
    let mut cancelled = pin!(async {
        tokio::select! {
            () = abandoned => {}
            () = stored.cancelled.cancelled() => {}
        }
    });
    let (mut is_cancelled, mut is_stored) = (false, false);
    loop {
        let sent = tokio::select! {
            biased;
            () = &mut cancelled, if !is_cancelled => {
                is_cancelled = true;
                events.fail(ApiError::cancelled());
                continue;
            }
            sent = events.next() => sent,
        };
        if events.has_ended() && !is_stored {
            // Stored before the last event is sent, so that a client that has read it finds the complete response.
            is_stored = true;
            state.responses.end(&stored, events.writer().to_json());
        }
        match sent {
            Some(StreamItem::Event(event)) => log.add(event),
            Some(StreamItem::KeepAlive(bytes)) => log.add_keep_alive(bytes),
            None => break,
        }
    }
    log.end(events.error().cloned());
}
