//! The loop of a speech recognizer's engine. Between two steps it takes new messages, drops cancelled windows and lets others start.
//! Invariant: every window of every front end goes through it, and its memory is reserved before it runs.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Instant;

use super::capacity::ListeningCapacity;
use super::window::{Recognizer, Window};
use crate::array;
use crate::awake::Awake;
use crate::engine::admission::{Queue, Submission, Unstarted};
use crate::engine::engine_loop::Message;
use crate::engine::event::FinishReason;
use crate::engine::options::{EngineOptions, Exactness};
use crate::engine::schedule::{Change, RunQueue, Ticket};
use crate::engine::stats::Gauges;
use crate::engine::step_monitor::StepReporter;
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::memory_pressure::{PressureSource, PressureWatch};
use crate::model::Whisper;
use crate::sampling::Scratch;
use crate::wired::Wired;

/// The maximum number of windows that take turns. More would only delay each other.
const MAX_RUNNING: usize = 4;

/// The maximum number of consecutive panics. One more ends the engine.
const MAX_PANICS: usize = 16;

/// Owns the model and all windows; lives on one thread.
pub(in crate::engine) struct ListeningLoop {
    recognizer: Recognizer,
    capacity: ListeningCapacity,
    queue: Queue,
    run_queue: RunQueue,
    windows: BTreeMap<u64, Entry>,
    /// The window of the current step.
    current: Option<u64>,
    steps: u64,
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

struct Entry {
    window: Window,
    is_running: bool,
    /// The number of the last step that it had.
    last_step: u64,
    /// True if a step panicked.
    has_panicked: bool,
}

impl ListeningLoop {
    pub(in crate::engine) fn new(
        model: Whisper,
        (folder, context): (Arc<ModelFolder>, usize),
        capacity: ListeningCapacity,
        options: &EngineOptions,
        gauges: Arc<Gauges>,
    ) -> Self {
        let pressure = options.memory_pressure.clone().unwrap_or_else(PressureSource::system);
        let (budget, running) = (capacity.budget, options.max_running.clamp(1, MAX_RUNNING));
        let mut engine = Self {
            recognizer: Recognizer { model, folder, context, scratch: Scratch::default() },
            run_queue: RunQueue::new(running, capacity.shared()),
            _wired: Wired::hold(budget),
            capacity,
            queue: Queue::default(),
            windows: BTreeMap::new(),
            current: None,
            steps: 0,
            panics: 0,
            last_id: 0,
            start: Instant::now(),
            pressure: PressureWatch::new(pressure, Instant::now()),
            awake: Awake::system(),
            gauges,
            progress: StepReporter::new(options.step_monitor.clone(), budget),
        };
        engine.record();
        engine
    }

    /// Runs until every handle is dropped or too many consecutive steps have panicked.
    pub(in crate::engine) fn run(mut self, messages: &Receiver<Message>) {
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.turn(messages))) {
                Ok(true) => {}
                Err(panic) if self.survive(&*panic) => {}
                Ok(false) | Err(_) => return,
            }
        }
    }

    /// Handles one message or runs one step. Returns false if every handle was dropped.
    fn turn(&mut self, messages: &Receiver<Message>) -> bool {
        let message = if self.windows.is_empty() {
            self.progress.idle(&self.gauges);
            self.awake.release();
            self.idle(messages)
        } else {
            messages.try_recv()
        };
        match message {
            Ok(Message::Submit(windows)) => {
                let waiting = Unstarted::new(self.last_id + 1, windows, Arc::clone(&self.gauges));
                self.enqueue(waiting);
            }
            // Windows share no passes, so that a window has the same bits in any company.
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

    /// Puts the next window of a request into the queue. The others wait for it to start or end.
    fn enqueue(&mut self, mut waiting: Unstarted) -> bool {
        let Some(Submission { request, outlet }) = waiting.pop() else { return false };
        self.last_id += 1;
        let (id, arrived) = (self.last_id, self.start.elapsed());
        let ticket = Ticket { client: request.client, request: waiting.request, priority: request.priority };
        match Window::new(request, outlet) {
            Ok(window) => {
                self.run_queue.submit(id, ticket, self.capacity.need(), arrived);
                let entry = Entry { window, is_running: false, last_step: self.steps, has_panicked: false };
                self.windows.insert(id, entry);
                self.queue.insert(id, waiting);
            }
            Err(error) => tracing::error!(%error, "a request was dropped"),
        }
        true
    }

    /// Runs one step of the window that waited longest for one.
    fn step(&mut self) {
        self.awake.hold();
        self.free_memory();
        self.end_cancelled();
        self.admit();
        let running = self.windows.iter().filter(|(_, entry)| entry.is_running);
        self.current = running.min_by_key(|(id, entry)| (entry.last_step, **id)).map(|(id, _)| *id);
        self.record();
        self.progress.work(None, &self.gauges);
        let Some(id) = self.current else { return };
        let Some(entry) = self.windows.get_mut(&id) else { return };
        self.steps += 1;
        entry.last_step = self.steps;
        let stepped = entry.window.step(&mut self.recognizer);
        self.panics = 0;
        match stepped {
            Ok(None) => {}
            Ok(Some(result)) => {
                entry.window.deliver(result);
                self.end(id, FinishReason::EndToken);
            }
            Err(error) => self.end(id, FinishReason::Error(error.to_string())),
        }
        self.record();
    }

    /// Starts as many windows as fit. When one starts, the next one of its request is queued and may start too.
    fn admit(&mut self) {
        loop {
            let mut followed = false;
            for change in self.run_queue.admit(self.start.elapsed()) {
                let (id, starts) = match change {
                    Change::Start(id) => (id, true),
                    Change::Preempt(id) => (id, false),
                };
                if let Some(entry) = self.windows.get_mut(&id) {
                    entry.is_running = starts;
                    if !starts {
                        entry.window.reset();
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
        let cancelled = self.windows.iter().filter(|(_, entry)| entry.window.is_cancelled());
        let cancelled: Vec<u64> = cancelled.map(|(id, _)| *id).collect();
        for id in cancelled {
            self.end(id, FinishReason::Cancelled);
        }
    }

    /// Ends a window, and queues the next one of its request if that waited for it.
    fn end(&mut self, id: u64, reason: FinishReason) {
        self.run_queue.remove(id);
        if let Some(waiting) = self.queue.remove(id) {
            self.enqueue(waiting);
        }
        let Some(entry) = self.windows.remove(&id) else { return };
        if let FinishReason::Error(message) = &reason {
            tracing::debug!(message, "a window failed");
        }
        let (usage, timings) = entry.window.finish(reason);
        self.gauges.record_end(&usage, &timings);
    }

    /// Repeats the window of a step that panicked, or ends it after a second panic. Returns false if the engine cannot continue; then every
    /// window has ended.
    fn survive(&mut self, panic: &(dyn Any + Send)) -> bool {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let message = Error::Internal(said.to_owned()).to_string();
        tracing::error!(message, "the engine panicked; please report this");
        self.panics += 1;
        if self.panics > MAX_PANICS {
            tracing::error!("the engine keeps panicking; stopping it");
            while let Some(id) = self.windows.keys().next().copied() {
                self.end(id, FinishReason::Error(message.clone()));
            }
            return false;
        }
        let Some(id) = self.current.take() else { return true };
        match self.windows.get_mut(&id) {
            Some(entry) if !entry.has_panicked => {
                entry.has_panicked = true;
                entry.window.reset();
            }
            Some(_) => self.end(id, FinishReason::Error(message)),
            None => {}
        }
        true
    }

    fn free_memory(&mut self) {
        if self.pressure.poll_if_due(Instant::now()).is_some()
            && let Err(error) = array::drop_freed_memory()
        {
            tracing::warn!(%error, "cannot return freed memory to the system");
        }
    }

    /// Records the reserved memory and the state of the queue.
    fn record(&mut self) {
        let (gauges, ledger) = (&self.gauges, self.run_queue.ledger());
        gauges.reserved_bytes.store(self.capacity.fixed + ledger.reserved(), Ordering::Relaxed);
        gauges.used_bytes.store(self.capacity.fixed + ledger.used(), Ordering::Relaxed);
        gauges.paused.store(self.run_queue.waiting().saturating_sub(self.queue.len()), Ordering::Relaxed);
        gauges.record_queue(self.queue.starts_left(), std::iter::empty());
        gauges.running.store(self.run_queue.running(), Ordering::Relaxed);
    }
}
