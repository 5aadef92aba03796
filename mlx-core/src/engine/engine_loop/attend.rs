//! The part of the loop that looks after machines that hold layers of the model. Invariant: when one was lost, nothing goes on that it had
//! a part in: every sequence ends with an error, and no state is kept.

use std::sync::PoisonError;
use std::time::Duration;

use super::EngineLoop;
use crate::engine::event::FinishReason;

/// How often an idle engine looks whether the machines are there.
pub(super) const LOOK: Duration = Duration::from_secs(1);

impl EngineLoop {
    /// Whether all machines that hold layers are there, after a word with each if `ask`.
    pub(super) fn attend(&mut self, ask: bool) -> bool {
        if !self.device.is_divided() {
            return true;
        }
        let outcome = self.device.attend(ask);
        self.record_outage();
        if let Err(error) = &outcome {
            self.give_up(&error.to_string());
        }
        outcome.is_ok()
    }

    /// Records whether a machine is away. This comes before a client has the error that follows from it, so that `/ready` never contradicts
    /// that error.
    pub(super) fn record_outage(&mut self) {
        *self.gauges.outage.lock().unwrap_or_else(PoisonError::into_inner) = self.device.outage();
    }

    /// Ends all sequences, those that wait too, and drops all states.
    pub(super) fn give_up(&mut self, message: &str) {
        self.ahead = None;
        // What was drawn was drawn from whole passes.
        self.emit();
        loop {
            // As one ends, the next one of its request lines up.
            let first = self.sequences.iter().map(|(id, _)| id).next();
            let Some(id) = first else { break };
            self.end(id, FinishReason::Error(message.to_owned()));
        }
        self.retired.clear();
        self.prefixes.clear();
        self.record_memory();
    }
}
