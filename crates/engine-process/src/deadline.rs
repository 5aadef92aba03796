//! The time that a child may take for its work. It follows from the measured speed. Invariant: pure.

use std::time::Duration;

/// The minimum time for any work.
const LEAST: Duration = Duration::from_secs(10);

/// The environment variable that replaces this minimum, in milliseconds. A test hook: a busy machine would have its children killed.
pub const DEADLINE: &str = "MLX_ENGINE_DEADLINE_MS";

/// The factor by which a step may exceed its expected duration. Other programs may slow it down.
const FACTOR: u32 = 20;

/// The factor by which a step may exceed the slowest one so far.
const OUTLIER: u32 = 4;

/// The time for a step without a measurement, besides reading all weights once, in multiples of the minimum.
const UNKNOWN: u32 = 6;

/// The bytes of weights that a slow disk reads per second, if memory is short.
const SLOW_DISK: u64 = 50_000_000;

/// The time without new bytes after which a load counts as stopped, besides reading all weights once.
pub(crate) const LOAD: Duration = Duration::from_mins(2);

/// The measured steps of a child.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    least: Duration,
    slowest: Duration,
    weight_bytes: u64,
    /// The additional time in which the engine notices the loss of a machine. The reason of the death then names the machine.
    silence: Duration,
}

impl Deadline {
    /// Creates the deadlines of a model with this many bytes of weights. Other machines may be silent for this long, if there are any.
    pub(crate) fn new(weight_bytes: u64, silence: Duration) -> Self {
        // A write may fail after this time, and the next read after the same time again.
        Self { least: least(), slowest: Duration::ZERO, weight_bytes, silence: silence * 2 }
    }

    /// Records the duration of a step.
    pub(crate) fn record(&mut self, step: Duration) {
        self.slowest = self.slowest.max(step);
    }

    /// Returns the time for a step with this expected duration, if it is known.
    pub(crate) fn step(&self, expected: Option<Duration>) -> Duration {
        let unknown = self.least * UNKNOWN + Duration::from_secs(self.weight_bytes / SLOW_DISK);
        let expected = expected.map_or(unknown, |expected| expected.saturating_mul(FACTOR));
        self.least.max(self.slowest * OUTLIER).max(expected) + self.silence
    }

    /// Returns the time to begin a step or to answer a call, which may compile a grammar.
    pub(crate) fn answer(&self) -> Duration {
        self.least * 3 + self.silence
    }
}

fn least() -> Duration {
    let given = || std::env::var(DEADLINE).ok()?.parse().ok();
    given().map_or(LEAST, Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_follows_from_the_work_and_the_slowest_step() {
        let seconds = Duration::from_secs;
        let mut deadline = Deadline::new(1_000_000_000, Duration::ZERO);
        assert_eq!(deadline.step(None), seconds(80), "a minute, and the weights at 50 MB/s");
        assert_eq!(deadline.step(Some(Duration::from_millis(20))), seconds(10));
        assert_eq!(deadline.step(Some(seconds(3))), seconds(60));
        deadline.record(seconds(30));
        deadline.record(seconds(1));
        assert_eq!(deadline.step(Some(Duration::from_millis(20))), seconds(120));
        let divided = Deadline::new(0, seconds(7));
        assert_eq!([divided.step(Some(seconds(0))), divided.answer()], [seconds(24), seconds(44)]);
    }
}
