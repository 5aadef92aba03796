//! Recovers from panics, which are bugs in this code or in a library. Invariant: a partly written state is never used again. States are
//! recomputed from their tokens, and a sequence with inconsistent tokens ends.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::EngineLoop;
use crate::engine::event::FinishReason;
use crate::engine::run::executor::Fault;
use crate::engine::sequence::Sequence;
use crate::error::Error;

/// The maximum number of consecutive panics. One more ends the engine.
const MAX_IN_A_ROW: usize = 16;

/// The errors for the sequences that end. A panic message may quote a request, so only the sequence that caused it receives the message.
struct Causes {
    own: String,
    other: String,
}

impl EngineLoop {
    /// Restores the engine after a panic. If one sequence was being processed, it ends. If a pass was running, its sequences are repeated
    /// one by one, and one that panics again ends. All others continue from their tokens. Returns false if the engine cannot continue; then
    /// every sequence has ended.
    pub(super) fn survive(&mut self, panic: &(dyn Any + Send)) -> bool {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let causes = Causes {
            own: Error::Internal(said.to_owned()).to_string(),
            other: Error::Internal("the engine panicked; its log has the cause".to_owned()).to_string(),
        };
        let single = self.panics.single.and_then(|id| self.sequences.find(id));
        let request = single.map(|sequence| sequence.outlet.span.clone().entered());
        tracing::error!(message = causes.own, "the engine panicked; please report this");
        drop(request);
        self.panics.in_a_row += 1;
        let goes_on = self.panics.in_a_row <= MAX_IN_A_ROW;
        let sound = goes_on && catch_unwind(AssertUnwindSafe(|| self.rebuild(&causes))).is_ok();
        if !sound {
            tracing::error!("the engine keeps panicking; stopping it");
            // If this panics too, the remaining sequences end with an error when they are dropped.
            catch_unwind(AssertUnwindSafe(|| self.fail_all(&causes.other))).ok();
        }
        sound
    }

    /// Drops all states and caches, synchronizes the scheduler with the sequences, and repeats or ends the sequences at fault.
    fn rebuild(&mut self, causes: &Causes) {
        let guard = std::mem::take(&mut self.panics);
        self.panics.in_a_row = guard.in_a_row;
        self.runner.reset();
        self.prefixes.clear();
        self.speculation.reset();
        self.reconcile(&causes.other);
        // The accepted tokens were drawn from complete passes.
        while catch_unwind(AssertUnwindSafe(|| self.emit())).is_err() {
            if let Some(id) = self.panics.single.take() {
                self.end_broken(id, &causes.other);
            }
        }
        match guard.single {
            Some(id) => self.end_broken(id, &causes.own),
            None if !guard.pass.is_empty() => {
                self.recover(Some(Fault { ids: guard.pass, message: causes.own.clone() }));
            }
            // The first panic is blamed on no sequence; after a second one, any running sequence may be at fault.
            None if guard.in_a_row > 1 => {
                let ids = self.sequences.running();
                self.recover(Some(Fault { ids, message: causes.other.clone() }));
            }
            None => {}
        }
        self.admission.requeue_all(&mut self.sequences);
        self.retired.clear();
        self.record_memory();
    }

    /// Ends sequences that the scheduler lacks or that have inconsistent tokens, and removes ended sequences from the scheduler and the queue.
    fn reconcile(&mut self, message: &str) {
        let known = self.admission.ids();
        for &id in known.iter().filter(|id| self.sequences.find(**id).is_none()) {
            self.admission.remove(id);
            self.speculation.remove(id);
        }
        let is_whole = |id: u64, sequence: &Sequence| {
            let waiting = self.accepted.iter().filter(|accepted| accepted.id == id).count();
            known.contains(&id) && sequence.history.generated().len() == sequence.emitted + waiting
        };
        let broken = self.sequences.iter().filter(|(id, sequence)| !is_whole(*id, sequence));
        let broken: Vec<u64> = broken.map(|(id, _)| id).collect();
        for id in broken {
            self.end_broken(id, message);
        }
        for id in self.admission.orphaned(&self.sequences) {
            self.enqueue_after(id);
        }
    }

    /// Ends a sequence. If that panics too, its events end without `Done`, which the client receives as an error.
    fn end_broken(&mut self, id: u64, message: &str) {
        if self.sequences.find(id).is_some() {
            let end = || self.end(id, FinishReason::Error(message.to_owned()));
            catch_unwind(AssertUnwindSafe(end)).ok();
        }
    }
}

#[cfg(test)]
mod tests;
