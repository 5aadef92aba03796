//! CPU work of requests: JSON, templates, tokenization. It runs on tokio's blocking threads, and each piece of work holds a slot. Short
//! requests have separate slots, so they do not wait for long ones. A client gets at most half of the slots, so one client cannot block
//! others. Invariant: work ends soon after its client has disconnected.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::available_parallelism;

use chat_format::Error;
use mlx_core::engine::Client;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::error::ApiError;

/// The body size in bytes below which a request is short.
pub(crate) const SHORT_BODY_LEN: usize = 64 << 10;

/// Limits the concurrent CPU work of requests.
pub(crate) struct CpuSlots {
    short: Slots,
    long: Slots,
}

impl Default for CpuSlots {
    fn default() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self { short: Slots::new(processors), long: Slots::new((processors / 2).max(1)) }
    }
}

impl CpuSlots {
    /// Runs the work of a request with this many bytes. Dropping the future, as when the client disconnects, cancels the work.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        client: Client,
        bytes: usize,
        work: impl FnOnce(&CancelFlag) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let slots = if bytes < SHORT_BODY_LEN { &self.short } else { &self.long };
        let slot = slots.take(client).await;
        let cancelled = CancellationToken::new();
        let _cancel_guard = cancelled.clone().drop_guard();
        let request = tracing::Span::current();
        let work = move || {
            // Held until the work ends, even after the client disconnects.
            let _slot = slot;
            // Its log lines have the id of the request.
            request.in_scope(|| work(&CancelFlag(cancelled)))
        };
        // The panic was already logged.
        let failed = |_| ApiError::failed("internal error while preparing the request; see the server's log");
        spawn_blocking(work).await.map_err(failed)?
    }
}

/// Set once the client of the work has disconnected.
pub(crate) struct CancelFlag(CancellationToken);

impl CancelFlag {
    /// Returns an error if the client has disconnected.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.0.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }
}

/// Slots for work, with a limit per client.
struct Slots {
    share: usize,
    all: Arc<Semaphore>,
    clients: Mutex<HashMap<Client, Arc<Semaphore>>>,
}

/// A slot of a client. Dropping it releases the slot.
struct Slot {
    // `None` only if a semaphore is closed, which never happens.
    _client: Option<OwnedSemaphorePermit>,
    _all: Option<OwnedSemaphorePermit>,
}

impl Slots {
    /// Creates `share` slots for each client, twice as many in total.
    fn new(share: usize) -> Self {
        Self { share, all: Arc::new(Semaphore::new(2 * share)), clients: Mutex::default() }
    }

    /// Waits for a slot.
    async fn take(&self, client: Client) -> Slot {
        let client_slot = self.of_client(client).acquire_owned().await.ok();
        Slot { _client: client_slot, _all: Arc::clone(&self.all).acquire_owned().await.ok() }
    }

    fn of_client(&self, client: Client) -> Arc<Semaphore> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        // Slots in use and waiting requests keep their client's semaphore alive. Other clients need no entry.
        clients.retain(|_, slots| Arc::strong_count(slots) > 1);
        Arc::clone(clients.entry(client).or_insert_with(|| Arc::new(Semaphore::new(self.share))))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::runtime::{Builder, Runtime};
    use tokio::task::AbortHandle;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);
    const ONE: Client = Client(1);
    const OTHER: Client = Client(2);

    fn runtime() -> Runtime {
        Builder::new_multi_thread().enable_all().build().expect("a runtime")
    }

    fn one_processor() -> Arc<CpuSlots> {
        Arc::new(CpuSlots { short: Slots::new(1), long: Slots::new(1) })
    }

    /// Starts work that runs until it is cancelled. Returns a handle that aborts its task, and a receiver that is notified when the work ends.
    fn begin_endless(
        runtime: &Runtime,
        slots: &Arc<CpuSlots>,
        bytes: usize,
    ) -> (AbortHandle, mpsc::Receiver<()>) {
        let slots = Arc::clone(slots);
        let ((started, has_started), (ended, end)) = (mpsc::channel(), mpsc::channel());
        let work = move |cancel: &CancelFlag| {
            started.send(()).ok();
            while cancel.check().is_ok() {
                std::thread::yield_now();
            }
            ended.send(()).ok();
            Ok(())
        };
        let task = runtime.spawn(async move { slots.run(ONE, bytes, work).await });
        has_started.recv_timeout(TIMEOUT).expect("it begins");
        (task.abort_handle(), end)
    }

    #[test]
    fn short_work_passes_long_work() {
        let (runtime, slots) = (runtime(), one_processor());
        let (task, _end) = begin_endless(&runtime, &slots, SHORT_BODY_LEN);
        assert_eq!(runtime.block_on(slots.run(ONE, SHORT_BODY_LEN - 1, |_| Ok(1))), Ok(1));
        task.abort();
    }

    #[test]
    fn work_of_one_client_leaves_room_for_others() {
        let (runtime, slots) = (runtime(), one_processor());
        for bytes in [0, SHORT_BODY_LEN] {
            let (task, end) = begin_endless(&runtime, &slots, bytes);
            let waiting = Arc::clone(&slots);
            let waiting = runtime.spawn(async move { waiting.run(ONE, bytes, |_| Ok(2)).await });
            assert_eq!(runtime.block_on(slots.run(OTHER, bytes, |_| Ok(1))), Ok(1));
            assert!(!waiting.is_finished(), "a client has its share");
            task.abort();
            end.recv_timeout(TIMEOUT).expect("it ends");
            assert_eq!(runtime.block_on(waiting).expect("no panic"), Ok(2));
        }
    }

    #[test]
    fn clients_without_work_are_forgotten() {
        let (runtime, slots) = (runtime(), one_processor());
        for client in 0..9 {
            assert_eq!(runtime.block_on(slots.run(Client(client), 0, |_| Ok(1))), Ok(1));
        }
        drop(slots.short.of_client(ONE));
        assert_eq!(slots.short.clients.lock().expect("no holder panics").len(), 1);
    }
}
