//! A token bucket that limits the bytes written, so that a busy server does not wear out a disk. Invariant: pure.

use std::time::Duration;

/// The time until an empty bucket is full.
const REFILL: Duration = Duration::from_hours(1);

/// The number of bytes that may still be written.
#[derive(Debug)]
pub(crate) struct Quota {
    each_hour: u64,
    left: u64,
    /// The time of the last refill.
    filled: Duration,
}

impl Quota {
    /// Creates a full bucket of `each_hour` bytes.
    pub(crate) fn new(each_hour: u64) -> Self {
        Self { each_hour, left: each_hour, filled: Duration::ZERO }
    }

    /// Takes `bytes` at time `now`. Returns false, and takes nothing, if fewer are left.
    pub(crate) fn take(&mut self, bytes: u64, now: Duration) -> bool {
        let passed = now.saturating_sub(self.filled).min(REFILL);
        let more = u128::from(self.each_hour) * passed.as_nanos() / REFILL.as_nanos();
        // Fractions of a byte count at the next refill.
        if more > 0 {
            self.left = self.each_hour.min(self.left.saturating_add(more as u64));
            self.filled = now;
        }
        let enough = bytes <= self.left;
        if enough {
            self.left -= bytes;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_span_of_time_sees_more_than_a_bucket_and_its_refill(
            each_hour in 1..100_000u64,
            writes in proptest::collection::vec((0..120_000u64, 0..2_000_000u64), 1..60),
        ) {
            let (mut quota, mut now, mut written) = (Quota::new(each_hour), Duration::ZERO, Vec::new());
            for (bytes, pause) in writes {
                now += Duration::from_millis(pause);
                if quota.take(bytes, now) {
                    written.push((now, bytes));
                }
                for start in 0..written.len() {
                    let span = now.saturating_sub(written[start].0);
                    let sum: u64 = written[start..].iter().map(|it| it.1).sum();
                    let most = each_hour as f64 * (1.0 + span.as_secs_f64() / 3600.0);
                    prop_assert!(sum as f64 <= most + 1.0, "{sum} in {span:?}");
                }
            }
            // After a long wait the bucket is full.
            prop_assert!(quota.take(each_hour, now + REFILL));
        }
    }
}
