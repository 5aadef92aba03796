//! Retries with exponential backoff.

use std::thread::sleep;
use std::time::{Duration, Instant};

use mlx_hub::Error;

/// Why an attempt failed.
#[derive(Debug)]
pub(crate) enum FetchError {
    /// A retry may succeed.
    Transient {
        why: String,
        /// The value of `Retry-After`, if the Hub sent one.
        retry_after: Option<Duration>,
    },
    /// A retry would fail in the same way.
    Final(Error),
}

impl FetchError {
    pub(crate) fn transient(why: impl Into<String>) -> Self {
        Self::Transient { why: why.into(), retry_after: None }
    }
}

impl From<Error> for FetchError {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

/// The first pause. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The time between two checks for a cancellation.
const CHECK_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause. A longer `Retry-After` becomes an error.
const MAX_PAUSE: Duration = Duration::from_mins(1);

/// Counts consecutive failures and waits between attempts.
pub(crate) struct Backoff {
    max_attempts: u32,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(max_attempts: u32) -> Self {
        Self { max_attempts, failures: 0 }
    }

    /// Resets the count of failures after progress.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Calls `notify` with the reason, then waits before the next attempt, or until the download is cancelled. Returns the
    /// reason as an error if no attempts remain.
    pub(crate) fn wait(
        &mut self,
        why: String,
        retry_after: Option<Duration>,
        notify: impl FnOnce(&str),
        is_cancelled: impl Fn() -> bool,
    ) -> Result<(), String> {
        self.failures += 1;
        let pause = retry_after.unwrap_or(FIRST_PAUSE * 2_u32.pow(self.failures.min(8) - 1));
        if self.failures >= self.max_attempts || pause > MAX_PAUSE {
            return Err(why);
        }
        notify(&why);
        let end = Instant::now() + pause;
        while !is_cancelled() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            sleep(left.min(CHECK_PAUSE));
        }
        Ok(())
    }
}
