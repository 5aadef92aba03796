//! Long computations of requests on the processors of the host: JSON, templates, tokens. Short ones are done at once; long ones take
//! turns at a lower priority, so that they delay neither short ones nor the engine. Invariant: work ends soon after its client has left.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use chat_format::Error;
use thread_priority::{ThreadPriority, set_current_thread_priority};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use crate::error::ApiError;

/// Work on fewer bytes is short.
pub(crate) const SHORT: usize = 64 << 10;
/// Work on fewer bytes does not wait for the start of longer work.
const MIDDLE: usize = 1 << 20;
/// Long computations that may have begun, of fewer and of more bytes than that. Each holds a thread.
const BEGUN: [usize; 2] = [16, 4];
/// Short work that takes longer goes on as long work.
const SHORT_TIME: Duration = Duration::from_millis(50);
/// The priority of long work, of 99: on Linux a nice value of 5. Other threads that wake up run first; beside one that never sleeps, long work
/// still gets a quarter of a processor.
const LONG_PRIORITY: u8 = 35;
/// How long a turn is.
const TURN: Duration = Duration::from_millis(10);

/// Where computations wait for a processor.
pub(crate) struct HostWork {
    short: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    begun: [Arc<Semaphore>; 2],
}

impl Default for HostWork {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            short: Arc::new(Semaphore::new(processors)),
            turns: Arc::new(Semaphore::new((processors / 2).max(1))),
            begun: BEGUN.map(|count| Arc::new(Semaphore::new(count))),
        }
    }
}

impl HostWork {
    /// A turn of long work for the caller, until it is dropped.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        take(&self.turns).await
    }

    /// Runs work on so many bytes on a thread of its own. If the future is dropped, because the client has left, the work is cancelled.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Turn) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let cancelled = CancellationToken::new();
        let _cancels = cancelled.clone().drop_guard();
        let is_short = bytes < SHORT;
        let begun = match bytes {
            0..SHORT => None,
            SHORT..MIDDLE => Some(take(&self.begun[0]).await),
            _ => Some(take(&self.begun[1]).await),
        };
        let permit = take(if is_short { &self.short } else { &self.turns }).await;
        let (turns, runtime) = (Arc::clone(&self.turns), Handle::current());
        let place = Place { permit, is_short, since: Instant::now() };
        let turn = Turn { place: Mutex::new(place), turns, cancelled, runtime };
        let work = move || {
            // Held until the work ends, even if the client has left.
            let _begun = begun;
            work(&turn)
        };
        let outcome =
            if is_short { tokio::task::spawn_blocking(work).await.ok() } else { in_background(work).await };
        // A panic has been logged already.
        outcome.unwrap_or_else(|| {
            Err(ApiError::failed("internal error while preparing the request; see the server's log"))
        })
    }
}

/// Runs work on a thread of its own, at a lower priority. `None` if the work panics.
async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, outcome) = oneshot::channel();
    let run = move || {
        if let Ok(priority) = LONG_PRIORITY.try_into() {
            // Refused if the process itself has a lower priority, which is as good.
            set_current_thread_priority(ThreadPriority::Crossplatform(priority)).ok();
        }
        // There is no receiver if the client has left.
        done.send(work()).ok();
    };
    thread::Builder::new().name("long work".into()).spawn(run).ok()?;
    outcome.await.ok()
}

/// A place among the computations that run.
struct Place {
    /// `None` only if the semaphore is closed, which never happens.
    permit: Option<OwnedSemaphorePermit>,
    is_short: bool,
    since: Instant,
}

/// What a computation holds while it runs.
pub(crate) struct Turn {
    place: Mutex<Place>,
    turns: Arc<Semaphore>,
    cancelled: CancellationToken,
    runtime: Handle,
}

impl Turn {
    /// Lets others work if it is their turn; an error if the client has left.
    pub(crate) fn pause(&self) -> Result<(), Error> {
        if self.cancelled.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let length = if place.is_short { SHORT_TIME } else { TURN };
        if place.since.elapsed() < length {
            return Ok(());
        }
        self.wait_for_turn(&mut place)
    }

    /// Goes on as long work at once: what follows may take a while and does not pause.
    pub(crate) fn expect_long(&self) -> Result<(), Error> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_short { self.wait_for_turn(&mut place) } else { Ok(()) }
    }

    fn wait_for_turn(&self, place: &mut Place) -> Result<(), Error> {
        // Given back first, so that the longest waiting one is next.
        place.permit = None;
        let next = async {
            tokio::select! {
                permit = take(&self.turns) => Ok(permit),
                () = self.cancelled.cancelled() => Err(Error::Cancelled),
            }
        };
        *place = Place { permit: self.runtime.block_on(next)?, is_short: false, since: Instant::now() };
        Ok(())
    }
}

async fn take(semaphore: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(semaphore).acquire_owned().await.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime")
    }

    fn one_processor() -> Arc<HostWork> {
        let one = || Arc::new(Semaphore::new(1));
        Arc::new(HostWork { short: one(), turns: one(), begun: [one(), one()] })
    }

    /// Works until it is cancelled.
    fn endless(turn: &Turn) -> Result<(), ApiError> {
        loop {
            turn.pause()?;
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn short_work_passes_long_work() {
        let (runtime, host) = (runtime(), one_processor());
        let long = Arc::clone(&host);
        let long = runtime.spawn(async move { long.run(16 << 20, endless).await });
        for _ in 0..20 {
            let middle = runtime.block_on(host.run(SHORT, |_| Ok(2)));
            assert_eq!((runtime.block_on(host.run(10, |_| Ok(1))), middle), (Ok(1), Ok(2)));
        }
        long.abort();
    }

    #[test]
    fn short_work_that_takes_long_makes_room() {
        let (runtime, host) = (runtime(), one_processor());
        let long = Arc::clone(&host);
        let long = runtime.spawn(async move { long.run(10, endless).await });
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(runtime.block_on(host.run(10, |_| Ok(1))), Ok(1));
        long.abort();
    }

    #[test]
    fn work_that_expects_to_take_long_makes_room_at_once() {
        let (runtime, host) = (runtime(), one_processor());
        let (entered, is_running) = mpsc::channel();
        let (ended, end) = mpsc::channel::<()>();
        let long = Arc::clone(&host);
        let long = runtime.spawn(async move {
            let work = move |turn: &Turn| {
                turn.expect_long()?;
                entered.send(()).ok();
                end.recv().ok();
                Ok(())
            };
            long.run(10, work).await
        });
        assert_eq!(is_running.recv_timeout(Duration::from_secs(5)), Ok(()));
        assert_eq!(runtime.block_on(host.run(10, |_| Ok(1))), Ok(1));
        drop(ended);
        assert!(runtime.block_on(long).is_ok_and(|outcome| outcome.is_ok()));
    }

    #[test]
    fn work_ends_when_nobody_waits_for_it() {
        let (runtime, host) = (runtime(), one_processor());
        let (ended, end) = mpsc::channel();
        let work = move |turn: &Turn| {
            let outcome = endless(turn);
            ended.send(outcome.is_err()).ok();
            outcome
        };
        let task = runtime.spawn(async move { host.run(16 << 20, work).await });
        std::thread::sleep(Duration::from_millis(30));
        task.abort();
        assert_eq!(end.recv_timeout(Duration::from_secs(5)), Ok(true));
    }
}
