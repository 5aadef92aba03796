//! Whether guessing the tokens of a sequence is worth it.

/// How often guesses of a sequence's tokens were right lately.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::engine) struct GuessRate(f64);

impl Default for GuessRate {
    fn default() -> Self {
        Self(1.0)
    }
}

impl GuessRate {
    /// What it takes to guess: a wrong guess costs the device half a step, a right one saves what the host takes.
    pub(in crate::engine) const ENOUGH: f64 = 0.85;

    pub(in crate::engine) fn share(self) -> f64 {
        self.0
    }

    pub(in crate::engine) fn record(&mut self, right: bool) {
        self.0 += (f64::from(u8::from(right)) - self.0) / 16.0;
    }

    /// Lets old mistakes count less after a step without a guess, so that guesses are tried again.
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
