//! A streamed answer: server-sent events, made as the client reads them. Invariant: every stream ends with `[DONE]`,
//! and an error is an event of its own before it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, SelectAll, select_all, unfold};

use crate::error::ApiError;
use crate::generation::{Choice, Piece};
use crate::wire::options::StreamOptions;
use crate::writer::Writer;

/// The body of a streamed answer. Dropping it, as hyper does when the client disconnects, cancels its generations.
pub(crate) fn body(
    choices: Vec<Choice>,
    writer: Writer,
    options: StreamOptions,
    keep_alive: Duration,
) -> Body {
    let pieces = select_all(choices.into_iter().map(|choice| choice.pieces().boxed()));
    let ready = writer.opening().iter().map(|chunk| event(chunk)).collect();
    let feed = Feed { pieces, writer, options, keep_alive, ready, ended: false };
    Body::from_stream(unfold(feed, |mut feed| async move {
        let bytes = feed.next().await?;
        Some((Ok::<_, Infallible>(bytes), feed))
    }))
}

struct Feed {
    pieces: SelectAll<BoxStream<'static, Result<Piece, ApiError>>>,
    writer: Writer,
    options: StreamOptions,
    keep_alive: Duration,
    /// Events that are ready to be sent.
    ready: VecDeque<Bytes>,
    /// All events have been made.
    ended: bool,
}

impl Feed {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(bytes);
            }
            if self.ended {
                return None;
            }
            match tokio::time::timeout(self.keep_alive, self.pieces.next()).await {
                // A comment: clients ignore it, and proxies see that the connection is alive.
                Err(_) => return Some(Bytes::from_static(b": keep-alive\n\n")),
                Ok(Some(Ok(piece))) => {
                    let chunk = self.writer.chunk(piece);
                    self.ready.extend(chunk.map(|chunk| event(&chunk)));
                }
                Ok(Some(Err(error))) => self.fail(&error),
                Ok(None) => self.end(),
            }
        }
    }

    fn fail(&mut self, error: &ApiError) {
        tracing::warn!(error = error.response().error.message, "a stream failed");
        // The other choices of the request end, too.
        self.pieces.clear();
        let error = serde_json::to_string(&error.response()).expect("an error is valid JSON");
        self.ready.push_back(event(&error));
        self.ready.push_back(event("[DONE]"));
        self.ended = true;
    }

    fn end(&mut self) {
        if self.options.include_usage {
            self.ready.push_back(event(&self.writer.usage_chunk()));
        }
        self.ready.push_back(event("[DONE]"));
        self.ended = true;
    }
}

fn event(data: &str) -> Bytes {
    Bytes::from(format!("data: {data}\n\n"))
}
