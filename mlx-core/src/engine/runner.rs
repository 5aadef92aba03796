//! The engine's loop: plan, forward, draw, accept. Invariant: every request of every front end goes through it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use super::capacity::Capacity;
use super::decode::Step;
use super::device::Device;
use super::finish::finish;
use super::pace::Pace;
use super::request::{FinishReason, GenerationRequest};
use super::scheduler::{Change, Scheduler};
use super::sequence::{Outlet, Sequence};
use super::stats::Gauges;
use crate::folder::ModelFolder;
use crate::sampling::Scratch;

/// A checked request and where its events go.
pub(super) struct Submission {
    pub(super) request: GenerationRequest,
    pub(super) outlet: Outlet,
}

/// Owns the model and all sequences; lives on one thread.
pub(super) struct Engine {
    pub(super) device: Device,
    folder: Arc<ModelFolder>,
    capacity: Capacity,
    pub(super) scheduler: Scheduler,
    /// All that run or wait, by the order they came in.
    pub(super) sequences: BTreeMap<u64, Sequence>,
    /// The decode step that is on the device.
    pub(super) step: Option<Step>,
    pub(super) pace: Pace,
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
        max_running: usize,
        gauges: Arc<Gauges>,
    ) -> Self {
        let mut engine = Self {
            device,
            folder,
            scheduler: Scheduler::new(max_running, capacity.shared()),
            capacity,
            sequences: BTreeMap::new(),
            step: None,
            pace: Pace::default(),
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
            let next = if self.sequences.is_empty() {
                submissions.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                submissions.try_recv()
            };
            match next {
                Ok(submission) => self.queue(submission),
                Err(TryRecvError::Empty) => self.turn(),
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }

    fn queue(&mut self, submission: Submission) {
        let Submission { request, outlet } = submission;
        let promise = self.capacity.first_promise(&request);
        let priority = request.priority;
        let sequence = Sequence::new(request, outlet, promise, &self.folder);
        if sequence.limits.max_tokens == 0 && !sequence.reader.is_on() {
            self.gauges.waiting.fetch_sub(1, Ordering::Relaxed);
            return finish(sequence, FinishReason::Length, self.device.exactness());
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
        let fills = self.start_fills(!ready.is_empty());
        let mut drawn = self.draw(ready);
        drawn.extend(self.end_fills(fills));
        if self.device.works_ahead {
            self.start_step(&drawn);
            self.tell(drawn);
        } else {
            self.tell(drawn);
            self.start_step(&[]);
        }
        self.note_memory();
    }

    fn let_go_of_cancelled(&mut self) {
        let cancelled = self.sequences.iter().filter(|(_, sequence)| sequence.is_cancelled());
        for id in cancelled.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.end(id, FinishReason::Cancelled);
        }
    }

    fn admit(&mut self) {
        for change in self.scheduler.admit() {
            match change {
                Change::Preempt(id) => self.stop(id),
                Change::Start(id) => {
                    self.places += 1;
                    let leader = self.leader_for(id);
                    let length = self.sequences.get(&id).map_or(0, |sequence| sequence.history.len());
                    let cache = self.device.model.new_cache_for(length);
                    if let Some(sequence) = self.sequences.get_mut(&id) {
                        if !sequence.has_started() {
                            self.gauges.waiting.fetch_sub(1, Ordering::Relaxed);
                        }
                        sequence.start(cache, leader, self.places);
                    }
                }
            }
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
        for &other in &gone {
            self.stop(other);
        }
        !gone.contains(&id)
    }

    /// Ends a sequence, wherever it is; what it held is free at once.
    pub(super) fn end(&mut self, id: u64, reason: FinishReason) {
        let Some(sequence) = self.sequences.remove(&id) else { return };
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
        finish(sequence, reason, self.device.exactness());
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
        gauges.running.store(scheduler.running(), Ordering::Relaxed);
        let fresh = sequences.values().filter(|it| !it.has_started()).count();
        let paused = scheduler.waiting().saturating_sub(fresh);
        gauges.paused.store(paused, Ordering::Relaxed);
    }
}
