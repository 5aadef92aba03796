//! The requests and tokens of a key in the last minute.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time over which requests and tokens count.
const WINDOW: Duration = Duration::from_mins(1);
/// The length of a slot; amounts within one leave the window together.
const SLOT: Duration = Duration::from_secs(1);

/// The limits of a key, and its use.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    requests: Meter,
    tokens: Meter,
}

/// The amounts of the last minute.
#[derive(Debug, Default)]
struct Meter {
    limit: Option<u64>,
    /// The begin of each slot with its amount, oldest first.
    slots: VecDeque<(Instant, u64)>,
    sum: u64,
}

impl Allowance {
    /// Sets the limits.
    pub(super) fn limit(&mut self, requests: Option<u64>, tokens: Option<u64>) {
        (self.requests.limit, self.tokens.limit) = (requests, tokens);
    }

    /// Counts a request. If a limit is reached, returns the time after which it allows the next one.
    pub(super) fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        let waits = [self.requests.wait(now), self.tokens.wait(now)];
        if let Some(wait) = waits.into_iter().flatten().max() {
            return Err(wait);
        }
        self.requests.add(now, 1);
        Ok(())
    }

    /// Counts tokens. The answers in progress may exceed the limit; the next request then waits.
    pub(super) fn spend(&mut self, now: Instant, tokens: u64) {
        self.tokens.add(now, tokens);
    }

    /// Returns the requests and tokens of the last minute.
    pub(super) fn last_minute(&mut self, now: Instant) -> (u64, u64) {
        self.requests.expire(now);
        self.tokens.expire(now);
        (self.requests.sum, self.tokens.sum)
    }
}

impl Meter {
    fn add(&mut self, now: Instant, amount: u64) {
        self.sum += amount;
        match self.slots.back_mut().filter(|(begin, _)| now.duration_since(*begin) < SLOT) {
            Some((_, sum)) => *sum += amount,
            None => self.slots.push_back((now, amount)),
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some((_, amount)) =
            self.slots.pop_front_if(|(begin, _)| now.duration_since(*begin) >= WINDOW)
        {
            self.sum -= amount;
        }
    }

    /// Returns the time until the window has less than the limit; `None` if it has less now.
    fn wait(&mut self, now: Instant) -> Option<Duration> {
        self.expire(now);
        let limit = self.limit?;
        let mut left = self.sum;
        if left < limit {
            return None;
        }
        for (begin, amount) in &self.slots {
            left -= amount;
            if left < limit {
                return Some((*begin + WINDOW).saturating_duration_since(now));
            }
        }
        Some(WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn requests_are_limited_in_every_minute() {
        let (mut allowance, start) = (Allowance::default(), Instant::now());
        allowance.limit(Some(2), None);
        assert_eq!([0, 10].map(|at| allowance.admit(start + seconds(at))), [Ok(()), Ok(())]);
        assert_eq!(allowance.admit(start + seconds(20)), Err(seconds(40)));
        assert_eq!(allowance.admit(start + seconds(60)), Ok(()));
        assert_eq!(allowance.admit(start + seconds(61)), Err(seconds(9)));
        allowance.limit(None, None);
        assert_eq!(allowance.admit(start + seconds(61)), Ok(()));
        assert_eq!(allowance.last_minute(start + seconds(200)), (0, 0));
    }

    #[test]
    fn tokens_are_limited_by_what_was_spent() {
        let (mut allowance, start) = (Allowance::default(), Instant::now());
        allowance.limit(None, Some(100));
        assert_eq!(allowance.admit(start), Ok(()));
        allowance.spend(start, 70);
        assert_eq!(allowance.admit(start + seconds(5)), Ok(()), "the limit is not reached");
        allowance.spend(start + seconds(5), 80);
        assert_eq!(
            allowance.admit(start + seconds(6)),
            Err(seconds(54)),
            "until the first 70 leave the window"
        );
        assert_eq!(allowance.admit(start + seconds(60)), Ok(()));
        assert_eq!(allowance.last_minute(start + seconds(60)), (2, 80));
    }
}
