//! The engine's loop: plan, forward, draw, accept. Invariant: every request of every front end goes through it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use super::capacity::Capacity;
use super::decode::Step;
use super::device::Device;
use super::finish::finish;
use super::options::EngineOptions;
use super::prefill_budget::PrefillBudget;
use super::prefix_store::Prefixes;
use super::request::{FinishReason, GenerationRequest};
use super::scheduler::{Change, Scheduler};
use super::sequence::{Outlet, Sequence};
use super::stats::Gauges;
use crate::cache::{DiskCache, Hit};
use crate::folder::ModelFolder;
use crate::sampling::Scratch;

/// How long an idle engine waits for a request between two blocks that it saves.
const BETWEEN_SAVES: Duration = Duration::from_millis(1);

/// A checked request and where its events go.
pub(super) struct Submission {
    pub(super) request: GenerationRequest,
    pub(super) outlet: Outlet,
}

/// Owns the model and all sequences; lives on one thread.
pub(super) struct Engine {
    pub(super) device: Device,
    pub(super) folder: Arc<ModelFolder>,
    pub(super) capacity: Capacity,
    pub(super) scheduler: Scheduler,
    /// All that run or wait, by the order they came in.
    pub(super) sequences: BTreeMap<u64, Sequence>,
    /// What ended requests have left for later ones.
    pub(super) prefixes: Prefixes,
    /// The decode step that is on the device.
    pub(super) step: Option<Step>,
    pub(super) pace: PrefillBudget,
    /// Counts starts and chunks, so that chunks go to whoever has waited longest.
    pub(super) places: u64,
    pub(super) scratch: Scratch,
    pub(super) gauges: Arc<Gauges>,
    clock: Clock,
}

struct Clock {
    start: Instant,
    next_id: u64,
}

impl Engine {
    pub(super) fn new(
        device: Device,
        capacity: Capacity,
        folder: Arc<ModelFolder>,
        options: &EngineOptions,
        saved: Option<DiskCache>,
        gauges: Arc<Gauges>,
    ) -> Self {
        let kept = options.prefix_cache.unwrap_or(capacity.shared() / 4);
        let mut engine = Self {
            device,
            folder,
            scheduler: Scheduler::new(options.max_running, capacity.shared()),
            prefixes: Prefixes::new(kept, saved),
            capacity,
            sequences: BTreeMap::new(),
            step: None,
            pace: PrefillBudget::default(),
            places: 0,
            scratch: Scratch::default(),
            gauges,
            clock: Clock { start: Instant::now(), next_id: 0 },
        };
        engine.note_memory();
        engine
    }

    /// Works until every handle is gone.
    pub(super) fn run(mut self, submissions: &Receiver<Submission>) {
        loop {
            let idle = self.sequences.is_empty();
            let next = if !idle {
                submissions.try_recv()
            } else if self.save_some(false) {
                // Not in the queue of a disk that may stall: somebody may come.
                submissions.recv_timeout(BETWEEN_SAVES).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                })
            } else {
                submissions.recv().map_err(TryRecvError::from)
            };
            match next {
                Ok(submission) => self.queue(submission),
                Err(TryRecvError::Empty) if idle => {}
                Err(TryRecvError::Empty) => self.turn(),
                Err(TryRecvError::Disconnected) => break,
            }
        }
        while self.save_some(true) {}
    }

    fn queue(&mut self, submission: Submission) {
        let Submission { request, outlet } = submission;
        let promise = self.capacity.initial_reservation(&request);
        let priority = request.priority;
        let mut sequence = Sequence::new(request, outlet, promise, &self.folder);
        if sequence.limits.max_tokens == 0 && !sequence.reader.is_on() {
            self.gauges.waiting.fetch_sub(1, Ordering::Relaxed);
            return finish(&mut sequence, FinishReason::Length, self.device.exactness());
        }
        self.clock.next_id += 1;
        let id = self.clock.next_id;
        self.scheduler.submit(id, priority, promise.bytes, self.clock.start.elapsed());
        self.sequences.insert(id, sequence);
    }

    /// One turn. While the device computes prompts, the host draws; while it computes the next step, the host tells what was drawn.
    fn turn(&mut self) {
        self.let_go_of_cancelled();
        self.admit();
        let ready = self.wait_for_step();
        let fills = self.start_prefills(!ready.is_empty());
        let mut drawn = self.draw(ready);
        drawn.extend(self.finish_prefills(fills));
        if self.device.pipelined {
            self.start_step(&drawn);
            self.tell(drawn);
        } else {
            self.tell(drawn);
            self.start_step(&[]);
        }
        self.save_some(false);
        self.note_memory();
    }

    fn let_go_of_cancelled(&mut self) {
        let cancelled = self.sequences.iter().filter(|(_, sequence)| sequence.is_cancelled());
        for id in cancelled.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.end(id, FinishReason::Cancelled);
        }
    }

    fn admit(&mut self) {
        let changes = self.scheduler.admit();
        let look = |change: &Change| match change {
            Change::Start(id) => self.known_beginning(*id),
            Change::Preempt(_) => None,
        };
        // What is wanted is looked up before room is made, and is the last to go for it.
        let known: Vec<Option<Hit>> = changes.iter().map(look).collect();
        self.make_room();
        for (change, known) in changes.into_iter().zip(known) {
            match change {
                Change::Preempt(id) => self.stop(id),
                Change::Start(id) => self.start(id, known),
            }
        }
    }

    /// Lets a sequence run, with what is known of its prompt or behind whoever is about to know more.
    fn start(&mut self, id: u64, known: Option<Hit>) {
        self.places += 1;
        let taken = known.map_or(0, |hit| hit.length);
        let leader = self.leader_for(id).filter(|(_, shared)| *shared > taken);
        let known = match leader {
            Some(_) => None,
            None => self.restored_beginning(id, taken).or_else(|| self.copy_of_beginning(id, known)),
        };
        let length = self.sequences.get(&id).map_or(0, |sequence| sequence.history.len());
        let cache = known.unwrap_or_else(|| self.device.new_state(length));
        if let Some(sequence) = self.sequences.get_mut(&id) {
            if !sequence.has_started() {
                self.gauges.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            sequence.start(cache, leader, self.places);
        }
    }

    /// Takes a sequence's cache, which a replay brings back; its tokens stay.
    pub(super) fn stop(&mut self, id: u64) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.run = None;
        }
        self.release_followers(id);
        Gauges::add(&self.gauges.preemptions, 1);
    }

    /// Makes sure that a sequence's promise covers one more token; false if it had to go back in line for that.
    pub(super) fn has_room_to_grow(&mut self, id: u64) -> bool {
        // Whoever has just made way for another's growth asks for nothing more.
        let Some(sequence) = self.sequences.get_mut(&id).filter(|it| it.run.is_some()) else { return false };
        if sequence.history.len() < sequence.promise.tokens {
            return true;
        }
        let more = self.capacity.extend(&mut sequence.promise);
        let gone = self.scheduler.grow(id, more);
        self.make_room();
        for &other in &gone {
            self.stop(other);
        }
        !gone.contains(&id)
    }

    /// Ends a sequence, wherever it is; what it held is free at once.
    pub(super) fn end(&mut self, id: u64, reason: FinishReason) {
        let Some(mut sequence) = self.sequences.remove(&id) else { return };
        if let FinishReason::Error(message) = &reason {
            tracing::debug!(message, "a sequence failed");
        }
        self.scheduler.remove(id);
        if !sequence.has_started() {
            self.gauges.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        let (usage, timings) = (sequence.usage(), sequence.timings());
        Gauges::add(&self.gauges.finished, 1);
        Gauges::add(&self.gauges.completion_tokens, usage.completion_tokens);
        Gauges::add(&self.gauges.cached_tokens, usage.cached_tokens);
        self.gauges.served(timings.prefill + timings.decode);
        let exactness = self.device.exactness_of(&sequence);
        let failed = matches!(reason, FinishReason::Error(_));
        finish(&mut sequence, reason, exactness);
        if !failed {
            self.keep(sequence);
        }
    }

    fn note_memory(&mut self) {
        let Self { scheduler, sequences, gauges, .. } = self;
        for (&id, sequence) in sequences.iter() {
            let Some(run) = &sequence.run else { continue };
            let excess = scheduler.note_used(id, run.cache.bytes() as u64);
            if excess > 0 {
                tracing::warn!(id, excess, "a sequence holds more memory than it was promised");
            }
        }
        let ledger = scheduler.ledger();
        let fixed = self.capacity.fixed;
        gauges.reserved_bytes.store(fixed + ledger.reserved(), Ordering::Relaxed);
        gauges.used_bytes.store(self.capacity.weights() + ledger.used(), Ordering::Relaxed);
        gauges.prefix_bytes.store(self.prefixes.bytes(), Ordering::Relaxed);
        gauges.prefixes.store(self.prefixes.len(), Ordering::Relaxed);
        gauges.running.store(scheduler.running(), Ordering::Relaxed);
        let fresh = sequences.values().filter(|it| !it.has_started()).count();
        let paused = scheduler.waiting().saturating_sub(fresh);
        gauges.paused.store(paused, Ordering::Relaxed);
    }
}
