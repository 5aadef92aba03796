//! The number of tokens in a pass. Invariant: pure. A chat on the same device waits for a running pass, so passes are short.

use std::time::Duration;

/// The intended duration of a pass. On a GPU, a pass this long has enough tokens to be efficient.
const PASS: Duration = Duration::from_millis(80);
/// The tokens of a pass before any was measured.
const FIRST: usize = 512;
/// The fewest tokens of a pass. With fewer, a pass mostly reads the weights.
const FEWEST: usize = 128;
/// The weight of the newest pass in the average.
const NEWEST: f64 = 0.3;

/// The average time of a token, from the passes so far.
#[derive(Debug, Default)]
pub(super) struct PassTime {
    seconds: Option<f64>,
}

impl PassTime {
    /// Records a pass of this many tokens, with padding.
    pub(super) fn record(&mut self, tokens: usize, elapsed: Duration) {
        let newest = elapsed.as_secs_f64() / tokens.max(1) as f64;
        self.seconds = Some(self.seconds.map_or(newest, |average| average + NEWEST * (newest - average)));
    }

    /// Returns the maximum number of texts in a pass that is padded to this many tokens; at least 1.
    pub(super) fn texts(&self, tokens: usize) -> usize {
        let most = match self.seconds {
            Some(seconds) => ((PASS.as_secs_f64() / seconds.max(1e-9)) as usize).max(FEWEST),
            None => FIRST,
        };
        (most / tokens.max(1)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_take_about_the_intended_time() {
        let mut time = PassTime::default();
        assert_eq!((time.texts(100), time.texts(600)), (5, 1), "not measured yet");
        for _ in 0..200 {
            time.record(1000, Duration::from_millis(10));
        }
        assert!((79..=80).contains(&time.texts(100)), "8000 tokens in 80 ms");
        for _ in 0..200 {
            time.record(1000, Duration::from_secs(1));
        }
        assert_eq!((time.texts(16), time.texts(500)), (8, 1), "never below 128 tokens, nor below a text");
        time.record(0, Duration::ZERO);
        assert!(time.texts(1) >= FEWEST);
    }
}
