//! Reports of the engine's progress and of lost machines, from which another process sees that it is alive and complete.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::stats::{EngineStats, Gauges};

/// The state of an engine before a step, or before it waits for requests.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// True if a step begins, and false if the engine has nothing to do.
    pub is_step: bool,
    /// The expected duration of the step at the measured speed. `None` if it is unknown, because parts of the step were not measured.
    pub expected: Option<Duration>,
    /// The counters and gauges.
    pub stats: EngineStats,
}

/// A report of an engine.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineReport {
    /// A step begins, or the engine waits for requests.
    Step(Box<StepReport>),
    /// A machine that holds a part of the model was lost. The message names it. The report precedes the errors of all requests.
    LostMachine(String),
}

/// A function that receives the reports of an engine: those of steps in the engine's thread, that of a loss in any.
#[derive(Clone)]
pub struct StepMonitor(Arc<dyn Fn(EngineReport) + Send + Sync>);

impl StepMonitor {
    /// Creates a monitor.
    pub fn new(report: impl Fn(EngineReport) + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }

    /// Reports that a machine was lost.
    pub(super) fn lost_machine(&self, message: &str) {
        (self.0)(EngineReport::LostMachine(message.to_owned()));
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
            let stats = gauges.snapshot(self.budget);
            report(EngineReport::Step(Box::new(StepReport { is_step, expected, stats })));
        }
    }
}
