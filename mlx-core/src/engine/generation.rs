//! The events of one request, as an iterator or a stream.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use super::canceller::Canceller;
use super::event::{Event, FinishReason, Finished};
use super::options::Exactness;
use super::usage::{Timings, Usage};
use crate::error::{Error, Result};

/// The events of one request, as an iterator that blocks until the next one; [`Event::Done`] is the last. Dropping it cancels the
/// request within a step.
pub struct Generation {
    /// Pinned, so that a stream can poll it.
    events: Pin<Box<async_channel::Receiver<Event>>>,
    done: bool,
    canceller: Canceller,
    exactness: Exactness,
    /// Keeps the engine running.
    _engine: Arc<dyn Any + Send + Sync>,
}

impl Generation {
    pub(super) fn new(
        events: async_channel::Receiver<Event>,
        canceller: Canceller,
        exactness: Exactness,
        engine: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { events: Box::pin(events), done: false, canceller, exactness, _engine: engine }
    }

    /// Returns a handle that cancels this request.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// Returns the events as a stream for async callers. It works with any runtime.
    pub fn into_stream(self) -> EventStream {
        EventStream(self)
    }

    /// Calls `each` with every event except the last, and returns the last. An error of `each` ends the request.
    pub fn finish<E>(mut self, mut each: impl FnMut(Event) -> Result<(), E>) -> Result<Finished, E> {
        for event in &mut self {
            match event {
                Event::Done(finished) => return Ok(finished),
                event => each(event)?,
            }
        }
        Ok(self.stopped("its last event was already read"))
    }

    fn stopped(&self, why: &str) -> Finished {
        Finished {
            reason: FinishReason::Error(why.to_owned()),
            delta: String::new(),
            usage: Usage::default(),
            timings: Timings::default(),
            exactness: self.exactness,
        }
    }

    /// Handles a received event. If the engine stops, or a panic loses the request, the channel closes; then the last event is an error.
    fn received(&mut self, event: Option<Event>) -> Event {
        let lost = || Error::Internal("the engine has stopped or lost the request".into()).to_string();
        let event = event.unwrap_or_else(|| Event::Done(self.stopped(&lost())));
        self.done = matches!(event, Event::Done(_));
        event
    }
}

impl Iterator for Generation {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        if self.done {
            return None;
        }
        let event = self.events.recv_blocking().ok();
        Some(self.received(event))
    }
}

/// The events of one request, as a stream; [`Event::Done`] is the last. Dropping it cancels the request within a step.
pub struct EventStream(Generation);

impl EventStream {
    /// Returns a handle that cancels this request.
    pub fn canceller(&self) -> Canceller {
        self.0.canceller()
    }
}

impl Stream for EventStream {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.0.done {
            return Poll::Ready(None);
        }
        let event = ready!(self.0.events.as_mut().poll_next(context));
        Poll::Ready(Some(self.0.received(event)))
    }
}
