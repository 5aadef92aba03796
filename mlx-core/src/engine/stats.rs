//! Counters and gauges of an engine, for logs and monitoring.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::miss::PrefixMiss;
use super::usage::{Timings, Usage};

/// The maximum retry delay suggested to a refused request, in seconds.
const LONGEST_RETRY: u64 = 600;

/// A snapshot of the counters and gauges. Counters never decrease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineStats {
    /// Requests in the queue, and preempted sequences.
    pub waiting: usize,
    /// Running sequences.
    pub running: usize,
    /// Sequences that have ended, for any reason.
    pub finished: u64,
    /// Computed prompt tokens.
    pub prompt_tokens: u64,
    /// Prompt tokens reused from a cache.
    pub cached_tokens: u64,
    /// Drawn tokens.
    pub completion_tokens: u64,
    /// Drafted tokens that were verified.
    pub drafted_tokens: u64,
    /// Verified draft tokens that were accepted.
    pub accepted_tokens: u64,
    /// Decode steps that began before the tokens of the previous step were drawn.
    pub steps_ahead: u64,
    /// Early decode steps that were dropped because a guess was wrong or a sequence ended.
    pub steps_dropped: u64,
    /// Preemptions: each returns a running sequence to the queue.
    pub preemptions: u64,
    /// The memory budget, in bytes.
    pub budget_bytes: u64,
    /// Reserved bytes of the budget, for weights, activations and running requests.
    pub reserved_bytes: u64,
    /// Bytes in use by weights and by the states of running requests.
    pub used_bytes: u64,
    /// Bytes of cached prefixes. They are not reserved; reservations evict them.
    pub prefix_bytes: u64,
    /// Prefixes in the cache.
    pub prefixes: usize,
    /// Requests that reused a cached prefix.
    pub prefix_hits: u64,
    /// Evicted prefixes.
    pub prefix_evictions: u64,
    /// Requests that restored a prefix from disk.
    pub prefix_restores: u64,
    /// Files of the prompt cache that were removed because they were damaged or had another format.
    pub damaged_blocks: u64,
    /// The deaths of the engine's processes, if it runs in one.
    pub restarts: Restarts,
    /// Sequences that continued in another process.
    pub resumed: u64,
    /// Memory of the engine's process in bytes, if it runs in one.
    pub process_bytes: u64,
    /// The peak bytes of MLX's arrays in the engine's process.
    pub peak_bytes: u64,
    /// The peak bytes of arrays on each worker, in the order of ranks. A worker reports its peak with the next pass.
    pub worker_peak_bytes: Vec<u64>,
}

/// The numbers of processes that died, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarts {
    /// They exited.
    pub exited: u64,
    /// A signal ended them.
    pub killed: u64,
    /// They made no progress.
    pub stalled: u64,
    /// They sent invalid messages.
    pub garbled: u64,
    /// They lost a machine that holds a part of the model.
    pub lost_machine: u64,
}

/// The counters and gauges that the engine updates and any thread reads.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    /// Requests that have not started all of their sequences.
    pub(super) waiting: AtomicUsize,
    /// Prompt tokens of sequences that have not entered the scheduler's queue.
    pub(super) waiting_tokens: AtomicUsize,
    /// Preempted sequences.
    pub(super) paused: AtomicUsize,
    pub(super) running: AtomicUsize,
    pub(super) finished: AtomicU64,
    pub(super) prompt_tokens: AtomicU64,
    pub(super) cached_tokens: AtomicU64,
    pub(super) completion_tokens: AtomicU64,
    pub(super) drafted: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) steps_ahead: AtomicU64,
    pub(super) steps_dropped: AtomicU64,
    pub(super) preemptions: AtomicU64,
    pub(super) reserved_bytes: AtomicU64,
    pub(super) used_bytes: AtomicU64,
    pub(super) prefix_bytes: AtomicU64,
    pub(super) prefixes: AtomicUsize,
    pub(super) prefix_hits: AtomicU64,
    pub(super) prefix_evictions: AtomicU64,
    pub(super) prefix_restores: AtomicU64,
    pub(super) damaged_blocks: AtomicU64,
    pub(super) peak_bytes: AtomicU64,
    pub(super) worker_peak_bytes: Mutex<Vec<u64>>,
    /// The last prompt's first difference from a cached prefix.
    pub(super) last_miss: Mutex<Option<PrefixMiss>>,
    /// The moving average of the time that a sequence runs, in microseconds.
    service: AtomicU64,
    /// The average time that the running sequences have run so far, in microseconds.
    elapsed: AtomicU64,
    /// The number of sequences that start before a request leaves the queue.
    starts_left: AtomicUsize,
}

impl Gauges {
    /// Adds to a counter.
    pub(super) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Records the peak bytes of arrays in this process and on each worker.
    pub(super) fn record_peaks(&self, own: usize, of_workers: Vec<u64>) {
        self.peak_bytes.store(own as u64, Ordering::Relaxed);
        *self.worker_peak_bytes.lock().unwrap_or_else(PoisonError::into_inner) = of_workers;
    }

    /// Counts an ended sequence.
    pub(super) fn record_end(&self, usage: &Usage, timings: &Timings) {
        Self::add(&self.finished, 1);
        Self::add(&self.completion_tokens, usage.completion_tokens);
        Self::add(&self.cached_tokens, usage.cached_tokens);
        // A sequence that was cancelled in the queue used no device time.
        if timings.prefill > 0.0 {
            self.served(timings.prefill + timings.decode);
        }
    }

    /// Adds the run time of a sequence to the moving average.
    fn served(&self, seconds: f64) {
        let old = self.service.load(Ordering::Relaxed) as f64;
        let new = seconds * 1e6;
        let blended = if old > 0.0 { old + 0.1 * (new - old) } else { new };
        self.service.store(blended as u64, Ordering::Relaxed);
    }

    /// Records the number of sequences that start before a request leaves the queue, and the run times of the running sequences.
    pub(super) fn record_queue(&self, starts_left: usize, running: impl Iterator<Item = Duration>) {
        let (sum, count) =
            running.fold((Duration::ZERO, 0), |(sum, count), seconds| (sum + seconds, count + 1));
        self.starts_left.store(starts_left, Ordering::Relaxed);
        self.elapsed.store((sum / count.max(1)).as_micros() as u64, Ordering::Relaxed);
    }

    /// Estimates the seconds until a request leaves the queue.
    pub(super) fn retry_after(&self) -> u64 {
        let running = self.running.load(Ordering::Relaxed).max(1) as u64;
        // Running sequences may be longer than the ended ones.
        let each = self.service.load(Ordering::Relaxed).max(self.elapsed.load(Ordering::Relaxed));
        let starts_left = self.starts_left.load(Ordering::Relaxed).max(1) as u64;
        (each * starts_left / running).div_ceil(1_000_000).clamp(1, LONGEST_RETRY)
    }

    /// Returns the current numbers, for an engine with this budget.
    pub(super) fn snapshot(&self, budget_bytes: u64) -> EngineStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EngineStats {
            waiting: self.waiting.load(Ordering::Relaxed) + self.paused.load(Ordering::Relaxed),
            running: self.running.load(Ordering::Relaxed),
            finished: read(&self.finished),
            prompt_tokens: read(&self.prompt_tokens),
            cached_tokens: read(&self.cached_tokens),
            completion_tokens: read(&self.completion_tokens),
            drafted_tokens: read(&self.drafted),
            accepted_tokens: read(&self.accepted),
            steps_ahead: read(&self.steps_ahead),
            steps_dropped: read(&self.steps_dropped),
            preemptions: read(&self.preemptions),
            budget_bytes,
            reserved_bytes: read(&self.reserved_bytes),
            used_bytes: read(&self.used_bytes),
            prefix_bytes: read(&self.prefix_bytes),
            prefixes: self.prefixes.load(Ordering::Relaxed),
            prefix_hits: read(&self.prefix_hits),
            prefix_evictions: read(&self.prefix_evictions),
            prefix_restores: read(&self.prefix_restores),
            damaged_blocks: read(&self.damaged_blocks),
            restarts: Restarts::default(),
            resumed: 0,
            process_bytes: 0,
            peak_bytes: read(&self.peak_bytes),
            worker_peak_bytes: self.worker_peak_bytes.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_request_is_told_when_the_first_leaves_the_queue() {
        let gauges = Gauges::default();
        assert_eq!(gauges.retry_after(), 1, "nothing is known yet");
        gauges.running.store(2, Ordering::Relaxed);
        gauges.record_queue(1, [30, 50].map(Duration::from_secs).into_iter());
        assert_eq!(gauges.retry_after(), 20, "one of two that have run for 40 s on average");
        let timings = Timings { prefill: 0.5, decode: 5.5, ..Timings::default() };
        gauges.record_end(&Usage::default(), &timings);
        gauges.record_end(&Usage::default(), &Timings::default());
        gauges.record_queue(10, [1, 1].map(Duration::from_secs).into_iter());
        assert_eq!(gauges.retry_after(), 30, "ten turns of 6 s in two places");
        gauges.record_queue(1_000_000, std::iter::empty());
        assert_eq!(gauges.retry_after(), LONGEST_RETRY);
    }
}
