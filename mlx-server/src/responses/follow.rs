//! Makes the events of a stored response in the background, whether a client reads them or not.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::events::{EventLog, Reader};
use crate::answer::AnswerWriter;
use crate::error::ApiError;
use crate::stream::{Feed, Sent};

/// How long a response is computed without a reader.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unread {
    /// For so long.
    For(Duration),
    /// To its end.
    ToItsEnd,
}

/// Starts to make the events. The reader is there from the start, so that the response is not left at once.
pub(crate) fn follow<W: AnswerWriter>(
    feed: Feed<W>,
    unread: Unread,
    cancelled: CancellationToken,
) -> (Arc<EventLog>, Reader) {
    let log = EventLog::new();
    let reader = log.reader(0);
    tokio::spawn(run(Arc::clone(&log), feed, unread, cancelled));
    (log, reader)
}

async fn run<W: AnswerWriter>(
    log: Arc<EventLog>,
    mut feed: Feed<W>,
    unread: Unread,
    cancelled: CancellationToken,
) {
    let left = async {
        match unread {
            Unread::For(patience) => log.left_for(patience).await,
            Unread::ToItsEnd => std::future::pending().await,
        }
    };
    let mut over = pin!(async {
        tokio::select! {
            () = left => {}
            () = cancelled.cancelled() => {}
        }
    });
    let mut is_over = false;
    loop {
        let sent = tokio::select! {
            biased;
            () = &mut over, if !is_over => {
                is_over = true;
                feed.fail(ApiError::cancelled());
                continue;
            }
            sent = feed.next() => sent,
        };
        match sent {
            Some(Sent::Event(event)) => log.add(event),
            Some(Sent::SignOfLife(sign)) => log.add_sign_of_life(sign),
            None => break,
        }
    }
    log.end(feed.error().cloned());
}
