//! The model of a loop of jobs, and the jobs that it works on.

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::Span;

use crate::engine::admission::Submission;
use crate::engine::event::FinishReason;
use crate::engine::schedule::{Need, Ticket};
use crate::engine::usage::{Timings, Usage};
use crate::error::Result;

/// Jobs to end, by id.
pub(in crate::engine) type Ended = Vec<(u64, FinishReason)>;

/// A text or a window, from its request to its result.
pub(in crate::engine) trait Job {
    /// Returns true if the client disconnected or cancelled the request.
    fn is_cancelled(&self) -> bool;

    /// Drops everything that was computed.
    fn reset(&mut self);

    /// Sends the end.
    fn finish(self, reason: FinishReason) -> (Usage, Timings);
}

/// A model and its jobs' steps. A panic of a step loses no other job.
pub(in crate::engine) trait Worker {
    type Job: Job;

    /// Returns the job of a request that arrived at this time, and the memory that it needs.
    fn accept(&self, submission: Submission, ticket: Ticket, arrived: Duration) -> Result<(Self::Job, Need)>;

    /// Runs one step. Returns the jobs that ended.
    fn step(&mut self, jobs: &mut Jobs<Self::Job>, now: Duration) -> Ended;

    /// Repeats the jobs of a step that panicked, or returns them with an error.
    fn panicked(&mut self, jobs: &mut Jobs<Self::Job>, message: &str) -> Ended;
}

/// All jobs of a loop, by id.
pub(in crate::engine) struct Jobs<J>(pub(super) BTreeMap<u64, Entry<J>>);

pub(super) struct Entry<J> {
    pub(super) job: J,
    /// See [`Outlet::span`](crate::engine::outlet::Outlet::span).
    pub(super) span: Span,
    /// True if its memory is reserved.
    pub(super) is_running: bool,
}

impl<J> Jobs<J> {
    /// Returns the jobs that may have a step.
    pub(in crate::engine) fn running(&self) -> impl Iterator<Item = (u64, &J)> {
        self.0.iter().filter(|(_, entry)| entry.is_running).map(|(id, entry)| (*id, &entry.job))
    }

    /// Returns a job that has not ended.
    pub(in crate::engine) fn get(&self, id: u64) -> Option<&J> {
        self.0.get(&id).map(|entry| &entry.job)
    }

    /// Returns a job that has not ended.
    pub(in crate::engine) fn get_mut(&mut self, id: u64) -> Option<&mut J> {
        self.0.get_mut(&id).map(|entry| &mut entry.job)
    }
}
