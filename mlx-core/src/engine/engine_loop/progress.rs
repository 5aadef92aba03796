//! Reports the steps of the engine to its monitor.

use std::time::Duration;

use super::EngineLoop;
use crate::engine::schedule::plan::StepPlan;

impl EngineLoop {
    /// Reports that the work of a plan begins. Pictures are not measured, so steps that may encode some have no expected duration.
    pub(super) fn report_plan(&mut self, plan: &StepPlan) {
        if !self.progress.is_on() || plan.is_empty() {
            return;
        }
        let chunks = plan.prefill.iter().flat_map(|prefill| &prefill.chunks);
        let mut prompts = chunks.filter_map(|chunk| self.sequences.find(chunk.id));
        let is_measured = prompts.all(|sequence| sequence.media.is_empty());
        let expected = self.admission.expected(plan).filter(|_| is_measured);
        self.progress.work(expected.map(Duration::from_secs_f64), &self.gauges);
    }
}
