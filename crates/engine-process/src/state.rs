//! The shared state of a front: the phase of its child, open calls, sequences and progress.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use mlx_core::engine::{EngineStats, FinishReason};
use mlx_core::{Error, Result};

use crate::connection::{Connection, frame};
use crate::counters::counters;
use crate::death::{Death, Kind};
use crate::message::{FromChild, Reply, ToChild};
use crate::progress::Progress;
use crate::sequence::{MAX_DEATHS, Sequence};
use crate::submission::submit_message;

/// A message to the supervisor.
pub(crate) enum Notice {
    /// The engine has work again.
    Work,
    /// The model is loaded, or cannot be.
    Loaded(Result<Box<mlx_core::engine::RemoteFacts>>),
    /// The child has died for this reason, or closed the connection.
    Closed(Option<Death>),
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
    /// The next child cannot load the model, since another machine is away. The message names it.
    Away(String),
    /// No child can be started, for this reason.
    Ended(String),
}

/// A call without an answer.
pub(crate) struct Call {
    pub(crate) frames: Vec<u8>,
    pub(crate) reply: Sender<Result<Reply>>,
    /// The sequences that it submits.
    pub(crate) submits: Vec<u64>,
    /// True if this child has the call.
    pub(crate) is_sent: bool,
    /// The number of children that died before they answered.
    pub(crate) deaths: usize,
}

/// A call or a sequence that may have caused the death of earlier children.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suspect {
    Call(u64),
    Sequence(u64),
}

/// See the file's description.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) calls: BTreeMap<u64, Call>,
    pub(crate) sequences: BTreeMap<u64, Sequence>,
    pub(crate) progress: Progress,
    /// True if calls or sequences wait until a suspect has been answered or has made a token.
    is_trying: bool,
    /// The counters of earlier children.
    earlier: EngineStats,
    /// The last report of this child.
    now: EngineStats,
}

impl State {
    /// Returns true if the child has something to do.
    pub(crate) fn is_busy(&self) -> bool {
        self.progress.is_in_step() || !self.calls.is_empty() || !self.sequences.is_empty()
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
        let mut stats = self.now.clone();
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
            }
            // These two come from another thread than that of the engine.
            FromChild::Stats(stats) => {
                self.now = stats;
                self.progress.touch_outside_step();
            }
            FromChild::Reply { call, reply } => {
                self.answer(call, reply.map_err(Error::from));
                self.progress.touch_outside_step();
                self.continue_trial();
            }
            FromChild::Started { id } => {
                self.progress.touch();
                if let Some(sequence) = self.sequences.get_mut(&id) {
                    sequence.start();
                }
            }
            FromChild::Usage { id, usage } => {
                self.progress.touch();
                if let Some(sequence) = self.sequences.get_mut(&id) {
                    sequence.resume.usage = usage;
                }
            }
            FromChild::Event { id, event } => {
                self.progress.touch();
                let is_last = self.sequences.get_mut(&id).is_some_and(|sequence| sequence.deliver(event));
                if is_last {
                    self.sequences.remove(&id);
                }
                self.continue_trial();
            }
            // Dropping its sender is an error for the client.
            FromChild::Lost { id } => {
                self.progress.touch();
                self.sequences.remove(&id);
                self.continue_trial();
            }
            FromChild::Loading { .. }
            | FromChild::Ready(_)
            | FromChild::Failed(_)
            | FromChild::LostMachine(_) => {}
        }
    }

    /// Sends a call to the running child, unless it must wait for a suspect.
    pub(crate) fn send(&mut self, call: u64) {
        let must_wait = self.suspect().is_some_and(|suspect| suspect != Suspect::Call(call));
        let Self { phase: Phase::Running(connection), calls, sequences, .. } = self else { return };
        let Some(call) = calls.get_mut(&call) else { return };
        if must_wait {
            self.is_trying = true;
            return;
        }
        for id in &call.submits {
            if let Some(sequence) = sequences.get_mut(id) {
                sequence.is_submitted = true;
            }
        }
        call.is_sent = true;
        connection.send(call.frames.clone());
    }

    /// Returns the call or the sequence that must run without the others, so that the next death can only be its own fault.
    fn suspect(&self) -> Option<Suspect> {
        let call = self.calls.iter().find(|(_, call)| call.deaths > 0).map(|(id, _)| Suspect::Call(*id));
        let sequence = || self.sequences.iter().find(|(_, it)| it.is_suspect());
        call.or_else(|| sequence().map(|(id, _)| Suspect::Sequence(*id)))
    }

    /// Submits the sequences of earlier children to the running one. A suspect runs without the others.
    fn hand_over(&mut self) {
        self.drop_cancelled();
        let suspect = self.suspect();
        self.is_trying = suspect.is_some();
        if let Some(Suspect::Call(id)) = suspect {
            if self.calls.get(&id).is_some_and(|call| !call.is_sent) {
                self.send(id);
            }
            return;
        }
        let Self { phase: Phase::Running(connection), sequences, calls, .. } = self else { return };
        let called: Vec<u64> = calls.values().flat_map(|call| &call.submits).copied().collect();
        let mut groups: Vec<Vec<(u64, &Sequence)>> = Vec::new();
        for (&id, sequence) in sequences.iter() {
            let is_wanted = suspect.is_none_or(|suspect| suspect == Suspect::Sequence(id));
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

    /// Ends the cancelled sequences that the running child does not have. Those of an open call are sent with it.
    fn drop_cancelled(&mut self) {
        let Self { sequences, calls, .. } = self;
        sequences.retain(|id, sequence| {
            let is_called = || calls.values().any(|call| call.submits.contains(id));
            let ends = !sequence.is_submitted && sequence.is_cancelled() && !is_called();
            if ends {
                sequence.end(FinishReason::Cancelled);
            }
            !ends
        });
    }

    /// Hands all calls and sequences to a new child.
    pub(crate) fn resume(&mut self) {
        self.is_trying = true;
        self.continue_trial();
    }

    /// Sends what waited for a suspect, once that has been answered, has made a token or has ended.
    fn continue_trial(&mut self) {
        if !self.is_trying {
            return;
        }
        self.hand_over();
        if !self.is_trying {
            let held: Vec<u64> =
                self.calls.iter().filter(|(_, call)| !call.is_sent).map(|(id, _)| *id).collect();
            for call in held {
                self.send(call);
            }
        }
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
        self.earlier = self.stats();
        let gauges = EngineStats { budget_bytes: self.now.budget_bytes, ..EngineStats::default() };
        match death.kind {
            Kind::Start => {}
            Kind::Exit => self.earlier.restarts.exited += 1,
            Kind::Signal => self.earlier.restarts.killed += 1,
            Kind::Stall => self.earlier.restarts.stalled += 1,
            Kind::Garbage => self.earlier.restarts.garbled += 1,
            Kind::Machine => self.earlier.restarts.lost_machine += 1,
        }
        let poisonous = |times: &str| {
            format!(
                "internal error: the engine's process died {times} while it ran this request; the last time, {death}"
            )
        };
        for call in self.calls.values_mut() {
            call.deaths += usize::from(std::mem::take(&mut call.is_sent));
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
            self.answer(call, Err(Error::Internal(poisonous(&format!("{MAX_DEATHS} times")))));
        }
        // The child may have died before it reported a start. Then any of its sequences may be at fault.
        if !self.sequences.values().any(|sequence| sequence.is_started) {
            self.sequences.values_mut().filter(|it| it.is_submitted).for_each(Sequence::start);
        }
        self.sequences.retain(|_, sequence| {
            let end = match sequence.survive() {
                Err(times) => Some(FinishReason::Error(poisonous(&times))),
                Ok(()) => sequence.is_cancelled().then_some(FinishReason::Cancelled),
            };
            let Some(reason) = end else { return true };
            sequence.end(reason);
            false
        });
        self.earlier.resumed += self.sequences.len() as u64;
        self.now = EngineStats { waiting: self.sequences.len(), ..gauges };
        self.progress = Progress::default();
        self.phase = Phase::Restarting(death);
        self.sequences.len()
    }

    /// Refuses all calls until a machine is back. Its sequences wait, unless `gives_up`.
    pub(crate) fn wait_for_machine(&mut self, why: &str, gives_up: bool) {
        let calls: Vec<u64> = self.calls.keys().copied().collect();
        for call in calls {
            self.answer(call, Err(Error::Distributed(why.to_owned())));
        }
        if gives_up {
            for sequence in std::mem::take(&mut self.sequences).into_values() {
                sequence.end(FinishReason::Error(why.to_owned()));
            }
        }
        self.now.waiting = self.sequences.len();
        self.phase = Phase::Away(why.to_owned());
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

#[cfg(test)]
mod tests;
