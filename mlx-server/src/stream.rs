//! Streams of answers, produced while the client reads them. Invariant: an answer that fails ends with an error in its protocol's format.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, empty, select_all, unfold};

use crate::answer::AnswerWriter;
use crate::delta::Delta;
use crate::error::ApiError;
use crate::generation::Choice;

/// Returns the body of a streamed answer. Dropping it, as hyper does when the client disconnects, cancels the generations.
pub(crate) fn body(choices: Vec<Choice>, writer: impl AnswerWriter, keep_alive: Duration) -> Body {
    events_body(AnswerEvents::new(choices, writer, keep_alive))
}

/// Returns the body of a streamed answer with these events.
pub(crate) fn events_body(events: AnswerEvents<impl AnswerWriter>) -> Body {
    Body::from_stream(unfold(events, |mut events| async move {
        let (StreamItem::Event(bytes) | StreamItem::KeepAlive(bytes)) = events.next().await?;
        Some((Ok::<_, Infallible>(bytes), events))
    }))
}

/// Returns the deltas of all choices, as they come.
pub(crate) fn joined(choices: Vec<Choice>) -> Deltas {
    select_all(choices.into_iter().map(|choice| choice.deltas().boxed())).boxed()
}

/// The deltas of an answer. The last one has its end; an error ends the stream.
pub(crate) type Deltas = BoxStream<'static, Result<Delta, ApiError>>;

/// An element of a stream.
pub(crate) enum StreamItem {
    /// An event of the answer.
    Event(Bytes),
    /// Bytes that keep a silent stream alive. They are not part of the answer.
    KeepAlive(Bytes),
}

/// The events of an answer. Dropping it cancels the generations.
pub(crate) struct AnswerEvents<W> {
    deltas: Deltas,
    writer: W,
    keep_alive: Duration,
    /// Events to send before the next delta is read.
    ready: VecDeque<Bytes>,
    /// True once all events have been produced.
    has_ended: bool,
    error: Option<ApiError>,
}

impl<W: AnswerWriter> AnswerEvents<W> {
    /// Creates the events of these choices.
    pub(crate) fn new(choices: Vec<Choice>, writer: W, keep_alive: Duration) -> Self {
        Self::of(joined(choices), writer, keep_alive)
    }

    /// Creates the events of these deltas.
    pub(crate) fn of(deltas: Deltas, mut writer: W, keep_alive: Duration) -> Self {
        let ready = writer.opening().into();
        Self { deltas, writer, keep_alive, ready, has_ended: false, error: None }
    }

    /// Returns the next event, or a keep-alive after a time without one. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<StreamItem> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(StreamItem::Event(bytes));
            }
            if self.has_ended {
                return None;
            }
            match tokio::time::timeout(self.keep_alive, self.deltas.next()).await {
                Err(_) => return Some(StreamItem::KeepAlive(self.writer.keep_alive())),
                Ok(Some(Ok(Delta { choice, progress: Some(progress), .. }))) => {
                    if let Some(bytes) = self.writer.progress(choice, progress) {
                        return Some(StreamItem::KeepAlive(bytes));
                    }
                }
                Ok(Some(Ok(delta))) => self.ready.extend(self.writer.delta(delta)),
                Ok(Some(Err(error))) => self.fail(error),
                Ok(None) => {
                    self.has_ended = true;
                    self.ready.extend(self.writer.closing());
                }
            }
        }
    }

    /// Ends the answer with an error, unless it has ended.
    pub(crate) fn fail(&mut self, error: ApiError) {
        if self.has_ended {
            return;
        }
        tracing::warn!(error = error.message(), "a stream failed");
        // The other choices of the request end too.
        self.deltas = empty().boxed();
        self.has_ended = true;
        self.ready.extend(self.writer.failure(&error));
        self.error = Some(error);
    }

    /// Returns true once the answer is complete or has failed, even if some of its events are not sent yet.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns the writer.
    pub(crate) fn writer(&self) -> &W {
        &self.writer
    }

    /// Returns the error if the answer failed.
    pub(crate) fn error(&self) -> Option<&ApiError> {
        self.error.as_ref()
    }
}
