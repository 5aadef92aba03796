//! What becomes of a try that failed: another one after a while, or an error.

use std::thread::sleep;
use std::time::Duration;

use mlx_core::Error;

/// Why a try failed.
#[derive(Debug)]
pub(super) enum FetchError {
    /// It may be gone the next time.
    Passing {
        why: String,
        /// How long the hub asks to wait.
        wait: Option<Duration>,
    },
    /// It will be the same the next time.
    Final(Error),
}

impl FetchError {
    pub(super) fn passing(why: impl Into<String>) -> Self {
        Self::Passing { why: why.into(), wait: None }
    }
}

impl From<Error> for FetchError {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

/// The first pause; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(500);
/// Whoever asks for a longer pause is told about instead.
const LONGEST: Duration = Duration::from_mins(1);

/// How many tries in a row may fail.
pub(super) struct Backoff {
    most: u32,
    failed: u32,
}

impl Backoff {
    pub(super) fn new(most: u32) -> Self {
        Self { most, failed: 0 }
    }

    /// Something was achieved; what failed before does not count any more.
    pub(super) fn renew(&mut self) {
        self.failed = 0;
    }

    /// Waits before the next try; gives the reason back if there is to be none. `tell` is told of the pause.
    pub(super) fn wait(
        &mut self,
        why: String,
        asked: Option<Duration>,
        tell: impl FnOnce(&str),
    ) -> Result<(), String> {
        self.failed += 1;
        let pause = asked.unwrap_or(PAUSE * 2_u32.pow(self.failed.min(8) - 1));
        if self.failed >= self.most || pause > LONGEST {
            return Err(why);
        }
        tell(&why);
        sleep(pause);
        Ok(())
    }
}
