//! Cancels a request from anywhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends a request from anywhere: another thread, a signal handler. What was generated before is kept.
#[derive(Debug, Clone, Default)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// Ends the request within a step; its events end with `Done`.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the request was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
