//! The part of the loop that survives a panic, which is a bug of ours or of a library. Invariant: nothing that the panic may have left half-written
//! is used again: states are computed anew from their tokens, and a sequence whose tokens do not add up ends.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::EngineLoop;
use crate::engine::event::FinishReason;
use crate::engine::sequence::Sequence;
use crate::error::Error;
use crate::sampling::Scratch;

/// After so many turns in a row that panicked, the engine ends.
const MOST_IN_A_ROW: usize = 16;

impl EngineLoop {
    /// Makes the engine sound after a panic. The sequence that panicked alone ends; those of a pass are repeated one by one, and the one that
    /// panics again ends. All others go on from their tokens. False if the engine cannot go on: then every sequence has ended.
    pub(super) fn survive(&mut self, panic: &(dyn Any + Send)) -> bool {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let message = Error::Internal(said.to_owned()).to_string();
        tracing::error!(message, "the engine panicked; please report this");
        self.panics.in_a_row += 1;
        let goes_on = self.panics.in_a_row <= MOST_IN_A_ROW;
        let sound = goes_on && catch_unwind(AssertUnwindSafe(|| self.rebuild(&message))).is_ok();
        if !sound {
            tracing::error!("the engine panics again and again, and ends");
            // Sequences that this leaves end with an error when they are dropped.
            catch_unwind(AssertUnwindSafe(|| self.give_up(&message))).ok();
        }
        sound
    }

    /// Drops all states and caches, brings the scheduler in line with the sequences, and repeats or ends those at fault.
    fn rebuild(&mut self, message: &str) {
        let guard = std::mem::take(&mut self.panics);
        self.panics.in_a_row = guard.in_a_row;
        self.ahead = None;
        self.scratch = Scratch::default();
        self.prefixes.clear();
        self.encoder_cache.clear();
        self.drafters.clear();
        self.reconcile(message);
        // What is still to be emitted was drawn from whole passes.
        while catch_unwind(AssertUnwindSafe(|| self.emit())).is_err() {
            if let Some(id) = self.panics.alone.take() {
                self.end_broken(id, message);
            }
        }
        match guard.alone {
            Some(id) => self.end_broken(id, message),
            None if !guard.pass.is_empty() => self.recover(&guard.pass, message),
            // At first no sequence is at fault; if it goes on, it may be any of those that run.
            None if guard.in_a_row > 1 => self.recover(&self.sequences.running(), message),
            None => {}
        }
        for id in self.scheduler.ids() {
            self.scheduler.requeue(id);
        }
        for id in self.sequences.running() {
            self.preempt(id);
        }
        self.retired.clear();
        self.record_memory();
    }

    /// Ends sequences that the scheduler does not know or whose tokens do not add up, and drops what is left of others that are gone.
    fn reconcile(&mut self, message: &str) {
        let known = self.scheduler.ids();
        for &id in known.iter().filter(|id| self.sequences.find(**id).is_none()) {
            self.scheduler.remove(id);
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
        for id in self.queue.ids() {
            if self.sequences.find(id).is_none() {
                self.line_up_after(id);
            }
        }
    }

    /// Ends a sequence whose end may panic, too: then its client finds its events cut off, which is an error as well.
    fn end_broken(&mut self, id: u64, message: &str) {
        if self.sequences.find(id).is_some() {
            let end = || self.end(id, FinishReason::Error(message.to_owned()));
            catch_unwind(AssertUnwindSafe(end)).ok();
        }
    }
}

#[cfg(test)]
mod tests;
