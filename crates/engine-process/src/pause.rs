//! The pauses between children, so that a child that dies at once does not take all the time of the machine. Invariant: pure.

use std::time::Duration;

/// A child that lived this long died of something new.
const LONG_LIFE: Duration = Duration::from_mins(1);

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(30);

/// The longest pause while requests wait. Their deaths are limited.
pub(crate) const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// The number of short lives in a row.
#[derive(Default)]
pub(crate) struct Pauses(u32);

impl Pauses {
    /// Returns the pause after a child that lived for this time, if nothing waits for the next one.
    pub(crate) fn after(&mut self, life: Duration) -> Duration {
        self.0 = if life < LONG_LIFE { self.0 + 1 } else { 0 };
        let doubled = |short_lives: u32| Duration::from_secs(1 << (short_lives - 1).min(5)).min(LONGEST);
        if self.0 == 0 { Duration::ZERO } else { doubled(self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_short_lives_in_a_row() {
        let mut pauses = Pauses::default();
        let seconds: Vec<u64> = (0..7).map(|_| pauses.after(Duration::from_secs(59)).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(pauses.after(LONG_LIFE), Duration::ZERO);
        assert_eq!(pauses.after(Duration::ZERO), Duration::from_secs(1));
    }
}
