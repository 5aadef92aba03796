//! Runs library code on untrusted files in a separate thread, which contains panics and has a large stack for deep
//! recursion.

use std::thread::{Builder, scope};

/// The name of these threads. A front end that prints panics can skip those of guarded threads, since they are returned
/// as errors.
pub const GUARDED_THREAD: &str = "guarded";

/// Enough for the deepest accepted template. Only used pages take memory.
const STACK: usize = 512 << 20;

/// Returns the result of `work`, or `None` if it panicked or the thread could not be started.
pub fn guarded<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    let builder = Builder::new().name(GUARDED_THREAD.to_owned()).stack_size(STACK);
    scope(|threads| builder.spawn_scoped(threads, work).ok()?.join().ok())
}
