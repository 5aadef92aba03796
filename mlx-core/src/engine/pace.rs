//! How much prefill fits between two decode steps. Invariant: pure; it decides when things run, never what they compute.

/// Positions whose attention costs about as much as a row's products.
const ROW_COST: usize = 256;

/// Prefill gets at least this many seconds between two decode steps: finer pieces would cost more than they save.
const LEAST: f64 = 0.002;

/// How much of a step's time a long prompt may take before the next step.
const SHARE: f64 = 0.8;

/// A prompt whose rest takes at most this many steps' time is finished in one go: its first token comes sooner, and the steps that
/// follow have one row more.
const BURST: f64 = 6.0;

/// How fast old measurements fade.
const FADE: f64 = 0.25;

/// A measurement counts as at most this many times the value so far.
const OUTLIER: f64 = 3.0;

/// Measured speeds.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Seconds of a decode step.
    step: Option<f64>,
    /// Seconds of one unit of prefill work.
    unit: Option<f64>,
}

/// The work of one layer for `rows` rows that look at up to `depth` positions, in units that cost about the same.
pub(super) fn work(rows: usize, depth: usize) -> f64 {
    (rows * (depth + ROW_COST)) as f64
}

impl Pace {
    /// Notes how long a decode step took.
    pub(super) fn stepped(&mut self, seconds: f64) {
        fade(&mut self.step, seconds);
    }

    /// Notes how long prefill work took.
    pub(super) fn filled(&mut self, work: f64, seconds: f64) {
        if work > 0.0 {
            fade(&mut self.unit, seconds / work);
        }
    }

    /// How much prefill work may run before the next decode step, if the next prompt needs `rest`; at least something always may.
    pub(super) fn allowance(&self, rest: f64) -> f64 {
        match (self.step, self.unit) {
            (Some(step), Some(unit)) if unit > 0.0 && rest * unit <= step * BURST => {
                rest.max((step * SHARE).max(LEAST) / unit)
            }
            (Some(step), Some(unit)) if unit > 0.0 => (step * SHARE).max(LEAST) / unit,
            // Nothing is known yet: one layer of one chunk will tell.
            _ => 0.0,
        }
    }
}

fn fade(value: &mut Option<f64>, new: f64) {
    // A single time of many times the usual says something about the machine's other work, not about ours.
    *value = Some(value.map_or(new, |old| old + FADE * (new.min(OUTLIER * old) - old)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_device_gets_less_prefill_between_steps() {
        let mut pace = Pace::default();
        assert!(pace.allowance(1e9) <= 0.0, "nothing is known");
        pace.stepped(0.010);
        pace.filled(work(64, 0), 0.001);
        let fast = pace.allowance(1e9);
        assert!((fast - work(64, 0) * 8.0).abs() < 1.0);
        let short = work(64, 0) * 20.0;
        assert!((pace.allowance(short) - short).abs() < 1.0, "a short rest runs in one go");
        for _ in 0..40 {
            pace.filled(work(64, 0), 0.004);
        }
        assert!((pace.allowance(1e9) - fast / 4.0).abs() < fast * 0.01);
    }
}
