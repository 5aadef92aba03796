//! The receiver of a sequence's events, and the span of its log lines.

use std::sync::Arc;

use async_channel::Sender;
use tracing::Span;

use super::canceller::Canceller;
use super::event::Event;
use super::usage::Usage;

/// Receives the events of one sequence in the engine's thread. It must not block. Dropping it without [`Event::Done`] means that the
/// sequence was lost.
pub trait EventSink: Send + Sync {
    /// Notes that the sequence has started, possibly again.
    fn start(&self);

    /// Takes an event.
    fn send(&self, event: Event);

    /// Takes the usage before each token, for a request that may have to continue elsewhere.
    fn record(&self, usage: &Usage);
}

/// The receiver of a sequence's events, the flag that cancels it, and the span of its log lines.
pub(super) struct Outlet {
    pub(super) sink: Sink,
    pub(super) canceller: Canceller,
    /// Has the id of the request. The engine's thread enters it to log about the sequence.
    pub(super) span: Span,
}

impl Outlet {
    /// Returns an outlet for a request with this id in the log, if it is not empty.
    pub(super) fn new(sink: Sink, canceller: Canceller, log_id: &str) -> Self {
        // An error span, so that warnings have the id with any filter. The front end's spans end earlier, so it has no parent.
        let span = match log_id {
            "" => Span::none(),
            id => tracing::error_span!(parent: None, "request", id),
        };
        Self { sink, canceller, span }
    }
}

/// See [`Outlet`].
#[derive(Clone)]
pub(super) enum Sink {
    /// The channel of a [`Generation`](super::Generation).
    Channel(Sender<Event>),
    /// A receiver that the program provides.
    Custom(Arc<dyn EventSink>),
}

impl Sink {
    /// Sends an event. Returns false if the receiver was dropped.
    pub(super) fn send(&self, event: Event) -> bool {
        match self {
            Self::Channel(sender) => sender.try_send(event).is_ok(),
            Self::Custom(sink) => {
                sink.send(event);
                true
            }
        }
    }

    /// Reports that the sequence has started.
    pub(super) fn start(&self) {
        if let Self::Custom(sink) = self {
            sink.start();
        }
    }

    /// Reports the usage before a token.
    pub(super) fn record(&self, usage: &Usage) {
        if let Self::Custom(sink) = self {
            sink.record(usage);
        }
    }

    /// Returns true if the receiver was dropped.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Channel(sender) => sender.is_closed(),
            Self::Custom(_) => false,
        }
    }
}

impl From<Sender<Event>> for Sink {
    fn from(sender: Sender<Event>) -> Self {
        Self::Channel(sender)
    }
}
