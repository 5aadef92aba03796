//! Decides whether guessing the tokens of a sequence pays off.

/// The recent share of correct guesses of a sequence's tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::engine) struct GuessRate(f64);

impl Default for GuessRate {
    fn default() -> Self {
        Self(1.0)
    }
}

impl GuessRate {
    /// The minimum rate at which guessing pays off: a wrong guess costs the device half a step, and a right one saves the host's time.
    pub(in crate::engine) const ENOUGH: f64 = 0.85;

    pub(in crate::engine) fn share(self) -> f64 {
        self.0
    }

    pub(in crate::engine) fn record(&mut self, right: bool) {
        self.0 += (f64::from(u8::from(right)) - self.0) / 16.0;
    }

    /// Reduces the weight of old mistakes after a step without a guess, so that guesses are tried again.
    pub(in crate::engine) fn decay(&mut self) {
        self.0 += (1.0 - self.0) / 256.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_that_cannot_be_guessed_is_left_alone_for_a_while() {
        let mut rate = GuessRate::default();
        let wrong = (1..1000).find(|_| {
            rate.record(false);
            rate.share() < GuessRate::ENOUGH
        });
        assert_eq!(wrong, Some(3));
        let steps = (1..1000).find(|_| {
            rate.decay();
            rate.share() >= GuessRate::ENOUGH
        });
        assert!(steps.is_some_and(|steps| (10..100).contains(&steps)), "{steps:?}");
    }
}
