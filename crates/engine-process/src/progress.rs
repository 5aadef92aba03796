//! The progress of a child, and the time until it must make more.

use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::death::Death;

/// The progress of the child.
pub(crate) struct Progress {
    pub(crate) deadline: Deadline,
    /// The time of the last progress.
    since: Instant,
    /// The time until the next.
    allowance: Duration,
    /// The start of the current step.
    step: Option<Instant>,
    /// True if the supervisor waits without a time limit.
    pub(crate) supervisor_sleeps: bool,
}

impl Default for Progress {
    fn default() -> Self {
        let deadline = Deadline::new(0, Duration::ZERO);
        let (since, allowance) = (Instant::now(), deadline.answer());
        Self { deadline, since, allowance, step: None, supervisor_sleeps: false }
    }
}

impl Progress {
    /// Notes progress. The next one must come within `allowance`.
    pub(crate) fn reset(&mut self, allowance: Duration) {
        (self.since, self.allowance, self.step) = (Instant::now(), allowance, None);
    }

    /// Notes progress of the engine.
    pub(crate) fn touch(&mut self) {
        self.since = Instant::now();
    }

    /// Notes that the child answers. That says nothing about its engine, which may hang in a step.
    pub(crate) fn touch_outside_step(&mut self) {
        if !self.is_in_step() {
            self.touch();
        }
    }

    pub(crate) fn is_in_step(&self) -> bool {
        self.step.is_some()
    }

    /// Notes that a step begins, or that the engine has nothing to do.
    pub(crate) fn report(&mut self, is_step: bool, expected: Option<Duration>) {
        let now = Instant::now();
        // While the engine was idle, the system may have moved its weights out of memory.
        let expected = expected.filter(|_| self.is_in_step());
        if let Some(begin) = self.step {
            self.deadline.record(now - begin);
        }
        self.step = is_step.then_some(now);
        self.since = now;
        self.allowance = if is_step { self.deadline.step(expected) } else { self.deadline.answer() };
    }

    #[cfg(test)]
    pub(crate) fn age(&mut self, by: Duration) {
        self.since -= by;
    }

    /// Returns the time that is left, or the death of a child that used it up.
    pub(crate) fn left(&self) -> Result<Duration, Death> {
        let waited = self.since.elapsed();
        self.allowance.checked_sub(waited).filter(|left| !left.is_zero()).ok_or_else(|| {
            Death::stalled(if self.step.is_some() { "a step" } else { "it" }, waited.as_secs())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_after_an_idle_time_may_take_as_long_as_an_unmeasured_one() {
        let mut progress = Progress::default();
        let expected = Some(Duration::from_millis(20));
        let (unmeasured, measured) = (progress.deadline.step(None), progress.deadline.step(expected));
        for (is_step, allowance) in
            [(true, unmeasured), (true, measured), (false, progress.deadline.answer()), (true, unmeasured)]
        {
            progress.report(is_step, expected);
            assert_eq!(progress.allowance, allowance);
        }
    }
}
