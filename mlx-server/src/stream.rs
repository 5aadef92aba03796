//! A streamed answer, made as the client reads it. Invariant: an answer that fails ends with the failure as its protocol writes it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, SelectAll, select_all, unfold};

use crate::answer::AnswerWriter;
use crate::delta::Delta;
use crate::error::ApiError;
use crate::generation::Choice;

/// The body of a streamed answer. Dropping it, as hyper does when the client disconnects, cancels its generations.
pub(crate) fn body(choices: Vec<Choice>, writer: impl AnswerWriter, keep_alive: Duration) -> Body {
    let feed = Feed::new(choices, writer, keep_alive);
    Body::from_stream(unfold(feed, |mut feed| async move {
        let (Sent::Event(bytes) | Sent::KeepAlive(bytes)) = feed.next().await?;
        Some((Ok::<_, Infallible>(bytes), feed))
    }))
}

/// What a stream sends.
pub(crate) enum Sent {
    /// A part of the answer.
    Event(Bytes),
    /// Bytes that keep a silent stream alive.
    KeepAlive(Bytes),
}

/// The events of an answer. Dropping it cancels its generations.
pub(crate) struct Feed<W> {
    deltas: SelectAll<BoxStream<'static, Result<Delta, ApiError>>>,
    writer: W,
    keep_alive: Duration,
    /// Events that are ready to be sent.
    ready: VecDeque<Bytes>,
    /// All events have been made.
    ended: bool,
    error: Option<ApiError>,
}

impl<W: AnswerWriter> Feed<W> {
    /// The events of these choices.
    pub(crate) fn new(choices: Vec<Choice>, mut writer: W, keep_alive: Duration) -> Self {
        let deltas = select_all(choices.into_iter().map(|choice| choice.deltas().boxed()));
        let ready = writer.opening().into();
        Self { deltas, writer, keep_alive, ready, ended: false, error: None }
    }

    /// The next event, or a keep-alive if there is none for long. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Sent> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(Sent::Event(bytes));
            }
            if self.ended {
                return None;
            }
            match tokio::time::timeout(self.keep_alive, self.deltas.next()).await {
                Err(_) => return Some(Sent::KeepAlive(self.writer.keep_alive())),
                Ok(Some(Ok(delta))) => self.ready.extend(self.writer.delta(delta)),
                Ok(Some(Err(error))) => self.fail(error),
                Ok(None) => {
                    self.ended = true;
                    self.ready.extend(self.writer.closing());
                }
            }
        }
    }

    /// Ends the answer with a failure, unless it has ended.
    pub(crate) fn fail(&mut self, error: ApiError) {
        if self.ended {
            return;
        }
        tracing::warn!(error = error.message(), "a stream failed");
        // The other choices of the request end, too.
        self.deltas.clear();
        self.ended = true;
        self.ready.extend(self.writer.failure(&error));
        self.error = Some(error);
    }

    /// Returns true once the answer is complete or has failed, even if events of it wait to be sent.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the writer.
    pub(crate) fn writer(&self) -> &W {
        &self.writer
    }

    /// Why it failed.
    pub(crate) fn error(&self) -> Option<&ApiError> {
        self.error.as_ref()
    }
}
