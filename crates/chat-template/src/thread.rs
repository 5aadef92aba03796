//! The thread of a rendering: its stack fits the deepest allowed recursion, and it can be paused and stopped.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, scope};
use std::time::Duration;

use crate::error::Error;
use crate::guarded::GUARDED_THREAD;

/// Many times the stack of the deepest rendering. Only used pages take memory.
const STACK: usize = 256 << 20;

/// The interval between calls of `pause`.
const INTERVAL: Duration = Duration::from_millis(5);

/// A function that is called regularly during a rendering. It may wait, to let other work run. An error stops the
/// rendering.
pub type Pause<'a, E> = &'a (dyn Fn() -> Result<(), E> + Sync);

/// A [`Pause`] that never waits and never stops a rendering.
pub const NO_PAUSE: Pause<Infallible> = &|| Ok(());

/// Pauses and stops the rendering thread.
#[derive(Debug, Default)]
pub(super) struct Control {
    stops: AtomicBool,
    /// Locked while the rendering is paused.
    pauses: Mutex<()>,
}

impl Control {
    /// Waits while the rendering is paused. Returns false if it must stop.
    pub(super) fn should_continue(&self) -> bool {
        drop(self.pauses.lock().unwrap_or_else(PoisonError::into_inner));
        !self.stops.load(Ordering::Relaxed)
    }
}

/// Returns the result of `work`, which runs on a new thread. The calling thread calls `pause` meanwhile, and `work`
/// waits while it waits. An error of `pause` stops `work` and is returned.
pub(super) fn on_thread<T: Send, E>(
    pause: Pause<E>,
    work: impl FnOnce(&Arc<Control>) -> Result<T, Error> + Send,
) -> Result<Result<T, Error>, E> {
    let control = Arc::new(Control::default());
    scope(|threads| {
        let (ended, end) = channel::<()>();
        let builder = Builder::new().name(GUARDED_THREAD.to_owned()).stack_size(STACK);
        let thread = builder.spawn_scoped(threads, || {
            // Dropped at the end, even after a panic.
            let _ended = ended;
            work(&control)
        });
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => return Ok(Err(Error::other(format!("no thread could be started: {error}")))),
        };
        let mut stopped = Ok(());
        while stopped.is_ok() && end.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let _paused = control.pauses.lock().unwrap_or_else(PoisonError::into_inner);
            stopped = pause();
            control.stops.store(stopped.is_err(), Ordering::Relaxed);
        }
        let result = thread.join().unwrap_or_else(|_| Err(Error::other("it cannot be rendered")));
        stopped.map(|()| result)
    })
}
