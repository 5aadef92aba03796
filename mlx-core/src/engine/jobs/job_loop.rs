//! The loop of jobs. Between two steps it takes new messages, drops cancelled jobs and lets others start. Invariant: every job of every front
//! end goes through it, and its memory is reserved before it runs.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Instant;

use super::worker::{Entry, Job, Jobs, Worker};
use crate::array;
use crate::awake::Awake;
use crate::engine::admission::{Queue, Unstarted};
use crate::engine::engine_loop::Message;
use crate::engine::event::FinishReason;
use crate::engine::options::{EngineOptions, Exactness};
use crate::engine::schedule::{Change, RunQueue, Ticket};
use crate::engine::stats::Gauges;
use crate::engine::step_monitor::StepReporter;
use crate::error::Error;
use crate::memory_pressure::{PressureSource, PressureWatch};
use crate::wired::Wired;

/// The maximum number of consecutive panics. One more ends the engine.
const MAX_PANICS: usize = 16;

/// The memory of an engine, in bytes.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct JobMemory {
    /// All bytes that the engine may use, without freed arrays.
    pub(in crate::engine) budget: u64,
    /// The bytes of the weights.
    pub(in crate::engine) fixed: u64,
}

impl JobMemory {
    /// Returns the bytes that all jobs share.
    pub(in crate::engine) fn shared(self) -> u64 {
        self.budget.saturating_sub(self.fixed)
    }
}

/// Owns the model and all jobs; lives on one thread.
pub(in crate::engine) struct JobLoop<W: Worker> {
    worker: W,
    memory: JobMemory,
    queue: Queue,
    run_queue: RunQueue,
    jobs: Jobs<W::Job>,
    panics: usize,
    last_id: u64,
    start: Instant,
    pressure: PressureWatch,
    awake: Awake,
    gauges: Arc<Gauges>,
    progress: StepReporter,
    /// Keeps the memory of the engine wired.
    _wired: Wired,
}

impl<W: Worker> JobLoop<W> {
    /// Creates a loop in which at most `max_running` jobs have reserved memory.
    pub(in crate::engine) fn new(
        worker: W,
        memory: JobMemory,
        max_running: usize,
        options: &EngineOptions,
        gauges: Arc<Gauges>,
    ) -> Self {
        let pressure = options.memory_pressure.clone().unwrap_or_else(PressureSource::system);
        let engine = Self {
            worker,
            memory,
            queue: Queue::default(),
            run_queue: RunQueue::new(max_running, memory.shared()),
            jobs: Jobs(BTreeMap::new()),
            panics: 0,
            last_id: 0,
            start: Instant::now(),
            pressure: PressureWatch::new(pressure, Instant::now()),
            awake: Awake::system(),
            gauges,
            progress: StepReporter::new(options.step_monitor.clone(), memory.budget),
            _wired: Wired::hold(memory.budget),
        };
        engine.record();
        engine
    }

    /// Runs until every handle is dropped or too many consecutive steps have panicked.
    pub(in crate::engine) fn run(mut self, messages: &Receiver<Message>) {
        while self.guarded_turn(messages) {}
    }

    /// Handles one message or runs one step, which may panic. Returns false if the loop has ended.
    fn guarded_turn(&mut self, messages: &Receiver<Message>) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.turn(messages))).unwrap_or_else(|panic| self.survive(&*panic))
    }

    /// Runs until no job is left.
    #[cfg(test)]
    pub(in crate::engine) fn run_jobs(&mut self, messages: &Receiver<Message>) {
        while self.guarded_turn(messages) && !self.jobs.0.is_empty() {}
    }

    fn turn(&mut self, messages: &Receiver<Message>) -> bool {
        let message = if self.jobs.0.is_empty() {
            self.progress.idle(&self.gauges);
            self.awake.release();
            self.idle(messages)
        } else {
            messages.try_recv()
        };
        match message {
            Ok(Message::Submit(sequences)) => {
                self.enqueue(Unstarted::new(self.last_id + 1, sequences, Arc::clone(&self.gauges)));
            }
            // An exact job shares no passes, so that it has the same bits in any company.
            Ok(Message::CheckExactness(_, reply)) => drop(reply.send(Ok(Exactness::Bit))),
            Err(TryRecvError::Empty) => self.step(),
            Err(TryRecvError::Disconnected) => return false,
        }
        true
    }

    /// Waits for a message. Meanwhile it polls the memory pressure.
    fn idle(&mut self, messages: &Receiver<Message>) -> Result<Message, TryRecvError> {
        while self.pressure.is_on {
            match messages.recv_timeout(self.pressure.interval()) {
                Err(RecvTimeoutError::Timeout) => self.free_memory(),
                Err(RecvTimeoutError::Disconnected) => return Err(TryRecvError::Disconnected),
                Ok(message) => return Ok(message),
            }
        }
        messages.recv().map_err(TryRecvError::from)
    }

    /// Puts the next job of a request into the queue. The others wait for it to start or end. Returns false if the request has no more jobs.
    fn enqueue(&mut self, mut waiting: Unstarted) -> bool {
        let Some(submission) = waiting.pop() else { return false };
        self.last_id += 1;
        let (id, arrived) = (self.last_id, self.start.elapsed());
        let (client, priority) = (submission.request.client, submission.request.priority);
        let ticket = Ticket { client, request: waiting.request, priority };
        let span = submission.outlet.span.clone();
        let _request = span.enter();
        match self.worker.accept(submission, ticket, arrived) {
            Ok((job, need)) => {
                self.run_queue.submit(id, ticket, need, arrived);
                self.jobs.0.insert(id, Entry { job, span: span.clone(), is_running: false });
                self.queue.insert(id, waiting);
            }
            Err(error) => tracing::error!(%error, "a request was dropped"),
        }
        true
    }

    fn step(&mut self) {
        self.awake.hold();
        self.free_memory();
        self.end_cancelled();
        self.admit();
        self.record();
        self.progress.work(None, &self.gauges);
        let ended = self.worker.step(&mut self.jobs, self.start.elapsed());
        self.panics = 0;
        self.end_all(ended);
        self.record();
    }

    /// Starts as many jobs as fit. When one starts, the next one of its request is queued and may start too.
    fn admit(&mut self) {
        loop {
            let mut followed = false;
            for change in self.run_queue.admit(self.start.elapsed()) {
                let (id, starts) = match change {
                    Change::Start(id) => (id, true),
                    Change::Preempt(id) => (id, false),
                };
                if let Some(entry) = self.jobs.0.get_mut(&id) {
                    entry.is_running = starts;
                    if !starts {
                        entry.job.reset();
                        Gauges::add(&self.gauges.preemptions, 1);
                    }
                }
                if starts && let Some(waiting) = self.queue.remove(id) {
                    followed |= self.enqueue(waiting);
                }
            }
            if !followed {
                return;
            }
        }
    }

    fn end_cancelled(&mut self) {
        let cancelled = self.jobs.0.iter().filter(|(_, entry)| entry.job.is_cancelled());
        self.end_all(cancelled.map(|(id, _)| (*id, FinishReason::Cancelled)).collect());
    }

    fn end_all(&mut self, ended: Vec<(u64, FinishReason)>) {
        for (id, reason) in ended {
            self.end(id, reason);
        }
    }

    /// Ends a job, and queues the next one of its request if that waited for it.
    fn end(&mut self, id: u64, reason: FinishReason) {
        self.run_queue.remove(id);
        if let Some(waiting) = self.queue.remove(id) {
            self.enqueue(waiting);
        }
        let Some(entry) = self.jobs.0.remove(&id) else { return };
        let _request = entry.span.enter();
        if let FinishReason::Error(message) = &reason {
            tracing::debug!(message, "a request failed");
        }
        let is_complete = !matches!(reason, FinishReason::Error(_) | FinishReason::Cancelled);
        let (usage, timings) = entry.job.finish(reason);
        if is_complete {
            Gauges::add(&self.gauges.prompt_tokens, usage.prompt_tokens);
        }
        self.gauges.record_end(&usage, &timings);
    }

    /// Repeats or ends the jobs of a step that panicked. Returns false if the engine cannot continue; then every job has ended.
    fn survive(&mut self, panic: &(dyn Any + Send)) -> bool {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let message = Error::Internal(text.to_owned()).to_string();
        tracing::error!(message, "the engine panicked; please report this");
        self.panics += 1;
        if self.panics <= MAX_PANICS {
            let ended = self.worker.panicked(&mut self.jobs, &message);
            self.end_all(ended);
            return true;
        }
        tracing::error!("the engine keeps panicking; stopping it");
        // An ended job can queue the next one of its request.
        while let Some(id) = self.jobs.0.keys().next().copied() {
            self.end(id, FinishReason::Error(message.clone()));
        }
        false
    }

    fn free_memory(&mut self) {
        if self.pressure.poll_if_due(Instant::now()).is_some()
            && let Err(error) = array::drop_freed_memory()
        {
            tracing::warn!(%error, "cannot return freed memory to the system");
        }
    }

    /// Records the reserved memory and the state of the queue.
    fn record(&self) {
        let (gauges, ledger, fixed) = (&self.gauges, self.run_queue.ledger(), self.memory.fixed);
        gauges.reserved_bytes.store(fixed + ledger.reserved(), Ordering::Relaxed);
        gauges.used_bytes.store(fixed + ledger.used(), Ordering::Relaxed);
        gauges.paused.store(self.run_queue.waiting().saturating_sub(self.queue.len()), Ordering::Relaxed);
        gauges.record_queue(self.queue.starts_left(), std::iter::empty());
        gauges.running.store(self.run_queue.running(), Ordering::Relaxed);
    }
}
