//! Ends a child with its parent.

use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

/// The time for a child to save prefixes and end.
pub(crate) const STOP: Duration = Duration::from_secs(30);

/// On Linux, the kernel ends this process with the thread that started it. That also ends a stopped process.
pub fn end_with_parent() {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).ok();
}

/// Ends this process at once. Nobody waits for its work.
pub fn end() -> ! {
    kill_process(getpid(), Signal::KILL).ok();
    std::process::abort()
}
