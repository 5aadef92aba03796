//! Cancellation of a request from any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A handle that cancels a request from another thread or a signal handler. The text generated so far remains valid.
#[derive(Debug, Clone, Default)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// Cancels the request. It ends within a step, and its last event is `Done`.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if the request was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
