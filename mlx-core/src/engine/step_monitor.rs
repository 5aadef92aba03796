//! Reports of the engine's progress, from which another process sees that it is alive.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::stats::{EngineStats, Gauges};

/// The state of an engine before a step, or before it waits for requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// True if a step begins, and false if the engine has nothing to do.
    pub is_step: bool,
    /// The expected duration of the step at the measured speed. `None` if it is unknown, because parts of the step were not measured.
    pub expected: Option<Duration>,
    /// The counters and gauges.
    pub stats: EngineStats,
}

/// A function that receives a report before each step, in the engine's thread.
#[derive(Clone)]
pub struct StepMonitor(Arc<dyn Fn(StepReport) + Send + Sync>);

impl StepMonitor {
    /// Creates a monitor.
    pub fn new(report: impl Fn(StepReport) + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }
}

impl fmt::Debug for StepMonitor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("StepMonitor").finish_non_exhaustive()
    }
}

impl PartialEq for StepMonitor {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for StepMonitor {}

/// Sends the reports of an engine with a budget of `budget` bytes.
pub(super) struct StepReporter {
    monitor: Option<StepMonitor>,
    budget: u64,
    /// True if the last report was that of a step.
    in_step: bool,
}

impl StepReporter {
    pub(super) fn new(monitor: Option<StepMonitor>, budget: u64) -> Self {
        Self { monitor, budget, in_step: false }
    }

    /// Returns true if there is a monitor.
    pub(super) fn is_on(&self) -> bool {
        self.monitor.is_some()
    }

    /// Reports that work begins, with its expected duration if that is known.
    pub(super) fn work(&mut self, expected: Option<Duration>, gauges: &Gauges) {
        self.report(true, expected, gauges);
    }

    /// Reports that the engine has nothing to do, unless it did already.
    pub(super) fn idle(&mut self, gauges: &Gauges) {
        if self.in_step {
            self.report(false, None, gauges);
        }
    }

    fn report(&mut self, is_step: bool, expected: Option<Duration>, gauges: &Gauges) {
        self.in_step = is_step;
        if let Some(StepMonitor(report)) = &self.monitor {
            report(StepReport { is_step, expected, stats: gauges.snapshot(self.budget) });
        }
    }
}
