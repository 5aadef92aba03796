//! The budget of prefill work between two decode steps. Invariant: pure. It affects when work runs, never its results.

/// The number of positions with an attention cost about equal to the matrix products of a row.
const ROW_COST: usize = 256;

/// The minimum seconds of prefill between two decode steps. Finer steps would cost more than they save.
const MIN_SECONDS: f64 = 0.002;

/// The share of a step's time that a long prompt may take before the next step.
const SHARE: f64 = 0.5;

/// Prompts finish in one pass if their remainders together take at most the time of this many steps. Their first tokens come sooner, and
/// the following steps have more rows.
const BURST: f64 = 6.0;

/// The weight of a new measurement.
const FADE: f64 = 0.25;

/// A measurement is capped at this many times the current value.
const OUTLIER: f64 = 3.0;

/// Measured speeds.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::engine) struct PrefillBudget {
    /// Seconds of a decode step.
    step: Option<f64>,
    /// Seconds of one unit of prefill work.
    unit: Option<f64>,
}

/// Returns the work of one layer for `rows` rows that attend to up to `depth` positions, in units of about equal cost.
pub(in crate::engine) fn work(rows: usize, depth: usize) -> f64 {
    (rows * (depth + ROW_COST)) as f64
}

impl PrefillBudget {
    /// Records the duration of a decode step.
    pub(in crate::engine) fn record_decode(&mut self, seconds: f64) {
        fade(&mut self.step, seconds);
    }

    /// Records the duration of prefill work.
    pub(in crate::engine) fn record_prefill(&mut self, work: f64, seconds: f64) {
        if work > 0.0 {
            fade(&mut self.unit, seconds / work);
        }
    }

    /// Returns the prefill work that may run before the next decode step. `remaining` is the work of the waiting prompts, in order. Some
    /// work may always run.
    pub(in crate::engine) fn budget(&self, remaining: impl Iterator<Item = f64>) -> f64 {
        // Without measurements, run one layer of one chunk to get the first.
        let Some((step, unit)) = self.known() else { return 0.0 };
        let burst = step * BURST / unit;
        let whole = remaining.scan(0.0, |sum, rest| {
            *sum += rest;
            (*sum <= burst).then_some(*sum)
        });
        whole.fold((step * SHARE).max(MIN_SECONDS) / unit, f64::max)
    }

    /// Returns true if a prompt with `remaining` work finishes in one step.
    pub(in crate::engine) fn is_short(&self, remaining: f64) -> bool {
        self.known().is_some_and(|(step, unit)| remaining * unit <= step * BURST)
    }

    /// Returns the expected seconds of a step. `None` if the speed of a part of it is unknown.
    pub(in crate::engine) fn expected(&self, prefill: f64, decodes: bool) -> Option<f64> {
        let prefill = if prefill > 0.0 { prefill * self.unit? } else { 0.0 };
        let decode = if decodes { self.step? } else { 0.0 };
        Some(prefill + decode)
    }

    fn known(&self) -> Option<(f64, f64)> {
        self.step.zip(self.unit.filter(|&unit| unit > 0.0))
    }
}

pub(super) fn fade(value: &mut Option<f64>, new: f64) {
    // A single outlier reflects other load on the machine, not our own work.
    *value = Some(value.map_or(new, |old| old + FADE * (new.min(OUTLIER * old) - old)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_device_gets_less_prefill_between_steps() {
        let mut budget = PrefillBudget::default();
        let allowance = |budget: &PrefillBudget, remaining: &[f64]| budget.budget(remaining.iter().copied());
        assert!(allowance(&budget, &[1e9]) <= 0.0, "nothing is known");
        budget.record_decode(0.010);
        budget.record_prefill(work(64, 0), 0.001);
        let fast = allowance(&budget, &[1e9]);
        assert!((fast - work(64, 0) * 5.0).abs() < 1.0);
        let short = work(64, 0) * 20.0;
        assert!((allowance(&budget, &[short]) - short).abs() < 1.0, "a short remaining runs in one go");
        assert!((allowance(&budget, &[short; 9]) - 3.0 * short).abs() < 1.0, "so do several, within bounds");
        assert!(budget.is_short(short) && !budget.is_short(4.0 * short));
        for _ in 0..40 {
            budget.record_prefill(work(64, 0), 0.004);
        }
        assert!((allowance(&budget, &[1e9]) - fast / 4.0).abs() < fast * 0.01);
    }
}
