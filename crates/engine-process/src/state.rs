//! The shared state of a front: the phase of its child, open calls, sequences and progress.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use mlx_core::engine::{EngineStats, FinishReason};
use mlx_core::{Error, Result};

use crate::connection::{Connection, frame};
use crate::deadline::Deadline;
use crate::death::{Death, Kind};
use crate::message::{FromChild, Reply, ToChild};
use crate::sequence::{MAX_DEATHS, Sequence};
use crate::submission::submit_message;

/// A message to the supervisor.
pub(crate) enum Notice {
    /// The engine has work again.
    Work,
    /// The model is loaded, or cannot be.
    Loaded(Result<Box<mlx_core::engine::RemoteFacts>>),
    /// The child closed the connection, or sent garbage.
    Closed(Option<String>),
    /// The last handle was dropped.
    Stop,
}

/// The state of the child.
#[derive(Default)]
pub(crate) enum Phase {
    /// The first child loads the model.
    #[default]
    Starting,
    Running(Arc<Connection>),
    /// A child has died for this reason, and the next one loads the model.
    Restarting(Death),
    /// No child can be started, for this reason.
    Ended(String),
}

/// A call without an answer.
pub(crate) struct Call {
    pub(crate) frames: Vec<u8>,
    pub(crate) reply: Sender<Result<Reply>>,
    /// The sequences that it submits.
    pub(crate) submits: Vec<u64>,
    /// The number of children that died before they answered.
    pub(crate) deaths: usize,
}

/// See the file's description.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) calls: BTreeMap<u64, Call>,
    pub(crate) sequences: BTreeMap<u64, Sequence>,
    pub(crate) progress: Progress,
    /// True if sequences wait until a suspect has made a token.
    is_trying: bool,
    /// The counters of earlier children.
    earlier: EngineStats,
    /// The last report of this child.
    now: EngineStats,
}

/// The progress of the child.
pub(crate) struct Progress {
    pub(crate) deadline: Deadline,
    /// The time of the last progress.
    since: Instant,
    /// The time until the next.
    allowance: Duration,
    /// The start of the current step.
    step: Option<Instant>,
    /// True if the supervisor waits without a time limit.
    pub(crate) supervisor_sleeps: bool,
}

impl Default for Progress {
    fn default() -> Self {
        let (since, allowance) = (Instant::now(), Deadline::answer());
        Self { deadline: Deadline::new(0), since, allowance, step: None, supervisor_sleeps: false }
    }
}

impl Progress {
    /// Notes progress. The next one must come within `allowance`.
    pub(crate) fn reset(&mut self, allowance: Duration) {
        (self.since, self.allowance, self.step) = (Instant::now(), allowance, None);
    }

    fn touch(&mut self) {
        self.since = Instant::now();
    }

    fn report(&mut self, is_step: bool, expected: Option<Duration>) {
        let now = Instant::now();
        if let Some(begin) = self.step {
            self.deadline.record(now - begin);
        }
        self.step = is_step.then_some(now);
        self.since = now;
        self.allowance = if is_step { self.deadline.step(expected) } else { Deadline::answer() };
    }

    /// Returns the time that is left, or the death of a child that used it up.
    pub(crate) fn left(&self) -> Result<Duration, Death> {
        let waited = self.since.elapsed();
        self.allowance.checked_sub(waited).filter(|left| !left.is_zero()).ok_or_else(|| {
            Death::stalled(if self.step.is_some() { "a step" } else { "it" }, waited.as_secs())
        })
    }
}

impl State {
    /// Returns true if the child has something to do.
    pub(crate) fn is_busy(&self) -> bool {
        self.progress.step.is_some() || !self.calls.is_empty() || !self.sequences.is_empty()
    }

    /// Notes that work is about to begin. Returns true if the supervisor must be woken.
    pub(crate) fn begin_work(&mut self) -> bool {
        if !self.is_busy() {
            self.progress.touch();
        }
        std::mem::take(&mut self.progress.supervisor_sleeps)
    }

    /// Returns the counters of all children, and the gauges of this one.
    pub(crate) fn stats(&self) -> EngineStats {
        let mut stats = self.now;
        for (total, earlier) in counters(&mut stats).into_iter().zip(counters(&mut self.earlier.clone())) {
            *total += *earlier;
        }
        stats
    }

    /// Handles a message of the running child.
    pub(crate) fn receive(&mut self, message: FromChild) {
        match message {
            FromChild::Step { is_step, expected, stats } => {
                self.now = stats;
                self.progress.report(is_step, expected);
                self.send_cancellations();
                return;
            }
            FromChild::Stats(stats) => self.now = stats,
            FromChild::Reply { call, reply } => self.answer(call, reply.map_err(Error::from)),
            FromChild::Started { id } => {
                if let Some(sequence) = self.sequences.get_mut(&id) {
                    sequence.start();
                }
            }
            FromChild::Usage { id, usage } => {
                if let Some(sequence) = self.sequences.get_mut(&id) {
                    sequence.resume.usage = usage;
                }
            }
            FromChild::Event { id, event } => {
                let is_last = self.sequences.get_mut(&id).is_some_and(|sequence| sequence.deliver(event));
                if is_last {
                    self.sequences.remove(&id);
                }
                self.continue_trial();
            }
            // Dropping its sender is an error for the client.
            FromChild::Lost { id } => {
                self.sequences.remove(&id);
                self.continue_trial();
            }
            FromChild::Loading { .. } | FromChild::Ready(_) | FromChild::Failed(_) => {}
        }
        self.progress.touch();
    }

    /// Sends a call to the running child, unless it submits sequences that must wait for a suspect.
    pub(crate) fn send(&mut self, call: u64) {
        let Self { phase: Phase::Running(connection), calls, sequences, .. } = self else { return };
        let Some(call) = calls.get(&call) else { return };
        let is_tried = sequences.values().any(Sequence::is_suspect);
        if !call.submits.is_empty() && is_tried {
            self.is_trying = true;
            return;
        }
        for id in &call.submits {
            if let Some(sequence) = sequences.get_mut(id) {
                sequence.is_submitted = true;
            }
        }
        connection.send(call.frames.clone());
    }

    /// Submits the sequences of earlier children to the running one. A suspect runs without the others until its next token.
    pub(crate) fn hand_over(&mut self) {
        let Self { phase: Phase::Running(connection), sequences, calls, .. } = self else { return };
        let suspect = sequences.iter().find(|(_, it)| it.is_suspect());
        let suspect = suspect.map(|(id, it)| (*id, it.is_submitted));
        self.is_trying = suspect.is_some();
        let called: Vec<u64> = calls.values().flat_map(|call| &call.submits).copied().collect();
        let mut groups: Vec<Vec<(u64, &Sequence)>> = Vec::new();
        for (&id, sequence) in sequences.iter() {
            let is_wanted = suspect.is_none_or(|(suspect, _)| suspect == id);
            if sequence.is_submitted || !is_wanted || called.contains(&id) {
                continue;
            }
            match groups.last_mut() {
                Some(group) if group[0].1.group == sequence.group => group.push((id, sequence)),
                _ => groups.push(vec![(id, sequence)]),
            }
        }
        // Sequences that ran before run again first.
        groups.sort_by_key(|group| group.iter().all(|(_, sequence)| sequence.resume.tokens.is_empty()));
        for group in &groups {
            if let Ok(frames) = frame(&submit_message(0, true, group)) {
                connection.send(frames);
            }
        }
        let submitted: Vec<u64> = groups.iter().flatten().map(|(id, _)| *id).collect();
        for id in submitted {
            if let Some(sequence) = sequences.get_mut(&id) {
                sequence.is_submitted = true;
            }
        }
    }

    /// Submits what waited for a suspect, once that has made a token or ended.
    fn continue_trial(&mut self) {
        if !self.is_trying {
            return;
        }
        self.hand_over();
        if !self.is_trying {
            let held: Vec<u64> =
                self.calls.iter().filter(|(_, call)| self.is_held(call)).map(|(id, _)| *id).collect();
            for call in held {
                self.send(call);
            }
        }
    }

    fn is_held(&self, call: &Call) -> bool {
        let mut submitted = call.submits.iter().filter_map(|id| self.sequences.get(id));
        submitted.any(|sequence| !sequence.is_submitted)
    }

    fn answer(&mut self, call: u64, reply: Result<Reply>) {
        let Some(call) = self.calls.remove(&call) else { return };
        if reply.is_err() {
            for id in &call.submits {
                self.sequences.remove(id);
            }
        }
        // The caller may have given up.
        call.reply.send(reply).ok();
    }

    fn send_cancellations(&mut self) {
        let Phase::Running(connection) = &self.phase else { return };
        for (&id, sequence) in &mut self.sequences {
            if !sequence.is_cancel_sent && sequence.is_cancelled() {
                sequence.is_cancel_sent = true;
                if let Ok(frames) = frame(&ToChild::Cancel { id }) {
                    connection.send(frames);
                }
            }
        }
    }

    /// Prepares calls and sequences for the next child. Returns the number of sequences that continue.
    pub(crate) fn mourn(&mut self, death: Death) -> usize {
        let now = Instant::now();
        self.earlier = self.stats();
        let gauges = EngineStats { budget_bytes: self.now.budget_bytes, ..EngineStats::default() };
        match death.kind {
            Kind::Exit => self.earlier.restarts.exited += 1,
            Kind::Signal => self.earlier.restarts.killed += 1,
            Kind::Stall => self.earlier.restarts.stalled += 1,
            Kind::Garbage => self.earlier.restarts.garbled += 1,
        }
        let poisonous = format!(
            "internal error: the engine's process died {MAX_DEATHS} times within a minute while it ran this request, and last it {}",
            death.cause
        );
        for call in self.calls.values_mut() {
            call.deaths += 1;
        }
        // The child may have accepted these, and the queue's limit does not matter any more.
        let submitted: Vec<u64> =
            self.calls.iter().filter(|(_, call)| !call.submits.is_empty()).map(|(id, _)| *id).collect();
        for call in submitted {
            self.answer(call, Ok(Reply::Submitted));
        }
        let failed: Vec<u64> =
            self.calls.iter().filter(|(_, call)| call.deaths >= MAX_DEATHS).map(|(id, _)| *id).collect();
        for call in failed {
            self.answer(call, Err(Error::Internal(poisonous.clone())));
        }
        // The child may have died before it reported a start. Then any of its sequences may be at fault.
        if !self.sequences.values().any(|sequence| sequence.is_started) {
            self.sequences.values_mut().filter(|it| it.is_submitted).for_each(Sequence::start);
        }
        self.sequences.retain(|_, sequence| {
            let survives = sequence.survives(now);
            if !survives {
                sequence.end(FinishReason::Error(poisonous.clone()));
            } else if sequence.is_cancelled() {
                sequence.end(FinishReason::Cancelled);
            }
            survives && !sequence.is_cancelled()
        });
        self.earlier.resumed += self.sequences.len() as u64;
        self.now = EngineStats { waiting: self.sequences.len(), ..gauges };
        self.phase = Phase::Restarting(death);
        self.sequences.len()
    }

    /// Ends everything, since no child can be started.
    pub(crate) fn end(&mut self, why: &str) {
        for call in std::mem::take(&mut self.calls).into_values() {
            call.reply.send(Err(Error::EngineStopped(why.to_owned()))).ok();
        }
        for sequence in std::mem::take(&mut self.sequences).into_values() {
            sequence.end(FinishReason::Error(format!("the engine has stopped: {why}")));
        }
        self.now = EngineStats::default();
        self.phase = Phase::Ended(why.to_owned());
    }
}

/// Returns the counters, which never decrease.
fn counters(stats: &mut EngineStats) -> [&mut u64; 18] {
    let EngineStats {
        finished,
        prompt_tokens,
        cached_tokens,
        completion_tokens,
        drafted_tokens,
        accepted_tokens,
        steps_ahead,
        steps_dropped,
        preemptions,
        prefix_hits,
        prefix_evictions,
        prefix_restores,
        damaged_blocks,
        restarts,
        resumed,
        ..
    } = stats;
    [
        finished,
        prompt_tokens,
        cached_tokens,
        completion_tokens,
        drafted_tokens,
        accepted_tokens,
        steps_ahead,
        steps_dropped,
        preemptions,
        prefix_hits,
        prefix_evictions,
        prefix_restores,
        damaged_blocks,
        resumed,
        &mut restarts.exited,
        &mut restarts.killed,
        &mut restarts.stalled,
        &mut restarts.garbled,
    ]
}
