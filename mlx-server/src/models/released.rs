//! Notices of leases that end.

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Notifies tasks of ended leases.
#[derive(Debug, Default)]
pub(super) struct Released {
    /// For loads that wait for memory.
    waiting: Notify,
    /// For the task that unloads models at the ends of their stays.
    reaper: Notify,
}

impl Released {
    /// Reports that a lease has ended, or that the stay of a model has changed.
    pub(super) fn notify(&self) {
        self.waiting.notify_waiters();
        self.reaper.notify_one();
    }

    /// Waits for the next notice after this call.
    pub(super) fn next_change(&self) -> Notified<'_> {
        self.waiting.notified()
    }

    /// Waits for the next notice, for the one task that unloads models.
    pub(super) async fn next(&self) {
        self.reaper.notified().await;
    }
}
