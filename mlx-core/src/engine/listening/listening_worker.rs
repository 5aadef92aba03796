//! The steps of a speech recognizer: windows take turns.

use std::sync::Arc;
use std::time::Duration;

use super::capacity::ListeningCapacity;
use super::window::{Recognizer, Window};
use crate::engine::admission::Submission;
use crate::engine::event::FinishReason;
use crate::engine::jobs::{Ended, Jobs, Worker};
use crate::engine::schedule::{Need, Ticket};
use crate::error::Result;
use crate::folder::ModelFolder;
use crate::model::Whisper;
use crate::sampling::Scratch;

/// The maximum number of windows that take turns. More would only delay each other.
pub(in crate::engine) const MAX_RUNNING: usize = 4;

/// A speech recognizer, and the order of the steps of its windows.
pub(in crate::engine) struct ListeningWorker {
    recognizer: Recognizer,
    capacity: ListeningCapacity,
    /// The window of the current step.
    current: Option<u64>,
    steps: u64,
}

impl ListeningWorker {
    pub(in crate::engine) fn new(
        model: Whisper,
        (folder, context): (Arc<ModelFolder>, usize),
        capacity: ListeningCapacity,
    ) -> Self {
        let recognizer = Recognizer { model, folder, context, scratch: Scratch::default() };
        Self { recognizer, capacity, current: None, steps: 0 }
    }
}

impl Worker for ListeningWorker {
    type Job = Window;

    fn accept(&self, submission: Submission, _ticket: Ticket, _arrived: Duration) -> Result<(Window, Need)> {
        Ok((Window::new(submission, self.steps)?, self.capacity.need()))
    }

    /// Runs one step of the window that waited longest for one.
    fn step(&mut self, jobs: &mut Jobs<Window>, _now: Duration) -> Ended {
        self.current = jobs.running().min_by_key(|(id, window)| (window.last_step, *id)).map(|(id, _)| id);
        let Some(id) = self.current else { return Ended::new() };
        let Some(window) = jobs.get_mut(id) else { return Ended::new() };
        self.steps += 1;
        window.last_step = self.steps;
        let reason = match window.step(&mut self.recognizer) {
            Ok(None) => return Ended::new(),
            Ok(Some(result)) => {
                window.deliver(result);
                FinishReason::EndToken
            }
            Err(error) => FinishReason::Error(error.to_string()),
        };
        vec![(id, reason)]
    }

    /// Repeats the window of the step, or ends it after a second panic.
    fn panicked(&mut self, jobs: &mut Jobs<Window>, message: &str) -> Ended {
        let Some(id) = self.current.take() else { return Ended::new() };
        if jobs.get_mut(id).is_some_and(Window::repeat_after_panic) {
            return Ended::new();
        }
        vec![(id, FinishReason::Error(message.to_owned()))]
    }
}
