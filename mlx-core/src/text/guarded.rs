//! Runs library code on files from the network: on a thread of its own, where a panic ends nothing else and deep
//! recursion has room.

use std::thread::{Builder, scope};

/// The name of such threads. A front end that prints panics may leave these out: they become errors.
pub const GUARDED_THREAD: &str = "guarded";

/// Enough for the deepest template that is let through; only what is used becomes memory.
const STACK: usize = 512 << 20;

/// What `work` gives, or `None` if it panicked or there was no thread for it.
pub(super) fn guarded<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    let builder = Builder::new().name(GUARDED_THREAD.to_owned()).stack_size(STACK);
    scope(|threads| builder.spawn_scoped(threads, work).ok()?.join().ok())
}
