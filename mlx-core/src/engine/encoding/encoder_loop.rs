//! The loop of an encoder's engine. Between two passes it takes new messages, drops cancelled texts and lets others start. Invariant: every
//! text of every front end goes through it, and its memory is reserved before it runs.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use super::capacity::EncoderCapacity;
use super::grouping::{Turns, Waiting};
use super::pass_time::PassTime;
use super::text::Text;
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
use crate::memory_pressure::{PressureSource, PressureWatch};
use crate::model::{PoolRow, TextEncoder, TextTokens};
use crate::wired::Wired;

/// The maximum number of texts from which a pass is chosen. More give less padding.
const MAX_RUNNING: usize = 256;

/// The maximum number of consecutive panics. One more ends the engine.
const MAX_PANICS: usize = 16;

/// Computes the results of texts: an encoder with its weights, or a fake one in a test.
pub(in crate::engine) trait Encoder {
    /// Returns the concatenated vectors of each text.
    fn vectors(&self, texts: &[TextTokens], rows: &[Vec<PoolRow>]) -> Result<Vec<Vec<f32>>>;

    /// Returns the logits of each text.
    fn logits(&self, texts: &[TextTokens], rows: &[Vec<PoolRow>]) -> Result<Vec<Vec<f32>>>;

    /// Returns true if the head reads the mean of all states instead of the first one.
    fn head_reads_mean(&self) -> bool;
}

impl Encoder for TextEncoder {
    fn vectors(&self, texts: &[TextTokens], rows: &[Vec<PoolRow>]) -> Result<Vec<Vec<f32>>> {
        self.pooled(&self.encode(texts)?, rows)?.wait()
    }

    fn logits(&self, texts: &[TextTokens], rows: &[Vec<PoolRow>]) -> Result<Vec<Vec<f32>>> {
        Self::logits(self, &self.encode(texts)?, rows)?.wait()
    }

    fn head_reads_mean(&self) -> bool {
        self.classifier_reads_mean() == Some(true)
    }
}

/// Owns the encoder and all texts; lives on one thread.
pub(in crate::engine) struct EncoderLoop {
    encoder: Box<dyn Encoder>,
    capacity: EncoderCapacity,
    queue: Queue,
    run_queue: RunQueue,
    texts: BTreeMap<u64, Entry>,
    turns: Turns,
    pass_time: PassTime,
    /// The texts of the current pass.
    pass: Vec<u64>,
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
    text: Text,
    /// The time at which it joined the queue.
    arrived: Duration,
    is_running: bool,
}

impl EncoderLoop {
    pub(in crate::engine) fn new(
        encoder: Box<dyn Encoder>,
        capacity: EncoderCapacity,
        options: &EngineOptions,
        gauges: Arc<Gauges>,
    ) -> Self {
        let pressure = options.memory_pressure.clone().unwrap_or_else(PressureSource::system);
        let budget = capacity.budget;
        let mut engine = Self {
            run_queue: RunQueue::new(MAX_RUNNING, capacity.shared()),
            _wired: Wired::hold(capacity.budget),
            encoder,
            capacity,
            queue: Queue::default(),
            texts: BTreeMap::new(),
            turns: Turns::default(),
            pass_time: PassTime::default(),
            pass: Vec::new(),
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

    /// Runs until every handle is dropped or too many consecutive passes have panicked.
    pub(in crate::engine) fn run(mut self, messages: &Receiver<Message>) {
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.turn(messages))) {
                Ok(true) => {}
                Err(panic) if self.survive(&*panic) => {}
                Ok(false) | Err(_) => return,
            }
        }
    }

    /// Handles one message or runs one pass. Returns false if every handle was dropped.
    fn turn(&mut self, messages: &Receiver<Message>) -> bool {
        let message = if self.texts.is_empty() {
            self.progress.idle(&self.gauges);
            self.awake.release();
            self.idle(messages)
        } else {
            messages.try_recv()
        };
        match message {
            Ok(Message::Submit(texts)) => {
                let waiting = Unstarted::new(self.last_id + 1, texts, Arc::clone(&self.gauges));
                self.enqueue(waiting);
            }
            // A text that runs alone has the same bits in any company.
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

    /// Puts the next text of a request into the queue. The others wait for it to start or end.
    fn enqueue(&mut self, mut waiting: Unstarted) -> bool {
        let Some(Submission { request, outlet }) = waiting.pop() else { return false };
        self.last_id += 1;
        let (id, arrived) = (self.last_id, self.start.elapsed());
        let ticket = Ticket { client: request.client, request: waiting.request, priority: request.priority };
        self.run_queue.submit(id, ticket, self.capacity.need(request.prompt.len()), arrived);
        let text = Text::new(request, outlet, ticket);
        self.texts.insert(id, Entry { text, arrived, is_running: false });
        self.queue.insert(id, waiting);
        true
    }

    /// Runs one pass.
    fn step(&mut self) {
        self.awake.hold();
        self.free_memory();
        self.end_cancelled();
        self.admit();
        let running: Vec<Waiting> =
            self.texts.iter().filter(|(_, it)| it.is_running).map(|(id, it)| it.view(*id)).collect();
        let most = |tokens| self.capacity.texts(tokens).min(self.pass_time.texts(tokens));
        self.pass = self.turns.next(&running, most, self.start.elapsed());
        self.record();
        self.progress.work(None, &self.gauges);
        let begin = Instant::now();
        match self.compute() {
            Ok(results) => {
                self.pass_time.record(self.padded_tokens(), begin.elapsed());
                self.deliver(results);
            }
            Err(error) => self.fail(&error.to_string()),
        }
        self.panics = 0;
        self.record();
    }

    /// Starts as many texts as fit. When one starts, the next one of its request is queued and may start too.
    fn admit(&mut self) {
        loop {
            let mut followed = false;
            for change in self.run_queue.admit(self.start.elapsed()) {
                let (id, starts) = match change {
                    Change::Start(id) => (id, true),
                    Change::Preempt(id) => (id, false),
                };
                if let Some(entry) = self.texts.get_mut(&id) {
                    entry.is_running = starts;
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

    /// Returns the tokens of the pass, with padding.
    fn padded_tokens(&self) -> usize {
        let lengths = self.pass.iter().map(|id| self.texts[id].text.len());
        self.pass.len() * lengths.max().unwrap_or(0)
    }

    /// Computes the results of the pass.
    fn compute(&mut self) -> Result<Vec<Vec<f32>>> {
        for id in &self.pass {
            if let Some(entry) = self.texts.get_mut(id) {
                entry.text.start();
            }
        }
        let texts: Vec<&Text> = self.pass.iter().map(|id| &self.texts[id].text).collect();
        let Some(first) = texts.first() else { return Ok(Vec::new()) };
        let tokens: Vec<TextTokens> = texts.iter().map(|text| text.tokens()).collect();
        let reads_mean = self.encoder.head_reads_mean();
        let rows: Vec<Vec<PoolRow>> = texts.iter().map(|text| text.pool_rows(reads_mean)).collect();
        if first.embed.is_some() {
            self.encoder.vectors(&tokens, &rows)
        } else {
            self.encoder.logits(&tokens, &rows)
        }
    }

    /// Sends the results of the pass and ends its texts. If a result of a shared pass is not finite, its text runs again in a separate pass:
    /// another text or the padding may be the cause.
    fn deliver(&mut self, results: Vec<Vec<f32>>) {
        let pass = std::mem::take(&mut self.pass);
        let is_shared = pass.len() > 1;
        for (id, numbers) in pass.into_iter().zip(results) {
            let Some(entry) = self.texts.get_mut(&id) else { continue };
            let reason = match entry.text.deliver(numbers) {
                Ok(()) => FinishReason::Length,
                Err(_) if is_shared => {
                    entry.text.quarantined = true;
                    continue;
                }
                Err(error) => FinishReason::Error(error.to_string()),
            };
            Gauges::add(&self.gauges.prompt_tokens, entry.text.len());
            self.end(id, reason);
        }
    }

    /// Ends the text of a failed pass. Several texts are repeated one by one, so that only the text at fault ends.
    fn fail(&mut self, message: &str) {
        let pass = std::mem::take(&mut self.pass);
        let is_single = pass.len() == 1;
        for id in pass {
            match self.texts.get_mut(&id) {
                Some(entry) if !is_single => entry.text.quarantined = true,
                Some(_) => self.end(id, FinishReason::Error(message.to_owned())),
                None => {}
            }
        }
    }

    fn end_cancelled(&mut self) {
        let cancelled = self.texts.iter().filter(|(_, entry)| entry.text.is_cancelled());
        let cancelled: Vec<u64> = cancelled.map(|(id, _)| *id).collect();
        for id in cancelled {
            self.end(id, FinishReason::Cancelled);
        }
    }

    /// Ends a text, and queues the next one of its request if that waited for it.
    fn end(&mut self, id: u64, reason: FinishReason) {
        self.run_queue.remove(id);
        if let Some(waiting) = self.queue.remove(id) {
            self.enqueue(waiting);
        }
        let Some(entry) = self.texts.remove(&id) else { return };
        if let FinishReason::Error(message) = &reason {
            tracing::debug!(message, "a text failed");
        }
        let (usage, timings) = entry.text.finish(reason);
        self.gauges.record_end(&usage, &timings);
    }

    /// Repeats or ends the texts of a pass that panicked. Returns false if the engine cannot continue; then every text has ended.
    fn survive(&mut self, panic: &(dyn Any + Send)) -> bool {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let message = Error::Internal(said.to_owned()).to_string();
        tracing::error!(message, "the engine panicked; please report this");
        self.panics += 1;
        let goes_on = self.panics <= MAX_PANICS;
        if goes_on {
            self.fail(&message);
        } else {
            tracing::error!("the engine keeps panicking; stopping it");
            while let Some(id) = self.texts.keys().next().copied() {
                self.end(id, FinishReason::Error(message.clone()));
            }
        }
        goes_on
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

impl Entry {
    fn view(&self, id: u64) -> Waiting {
        Waiting {
            id,
            tokens: self.text.len(),
            ticket: self.text.ticket,
            arrived: self.arrived,
            poolings: self.text.embed.map(|(poolings, _)| poolings),
            is_alone: self.text.is_alone(),
        }
    }
}

#[cfg(test)]
mod tests;
