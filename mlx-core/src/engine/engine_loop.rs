//! The engine's loop. It owns four parts, each with its own state: admission decides which sequences run, the runner computes, the prefix
//! cache stores what was computed, and speculation drafts. The loop passes sequences, plans and results between them. Invariant: every
//! request of every front end goes through it.

mod draws;
mod health;
mod lifecycle;
mod panics;
mod progress;
mod turn;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::admission::{Admission, Submission};
use super::capacity::Capacity;
use super::media::EncoderCache;
use super::options::{EngineOptions, Exactness};
use super::output::Accepted;
use super::panic_guard::PanicGuard;
use super::prefix::{Prefixes, share};
use super::run::device::Device;
use super::run::runner::Runner;
use super::schedule::plan::{Changes, StepPlan};
use super::sequence::{Sequence, Sequences};
use super::speculation::Speculation;
use super::speculation::draft_model::DraftModel;
use super::stats::Gauges;
use super::step_monitor::StepReporter;
use crate::array;
use crate::awake::Awake;
use crate::cache::DiskCache;
use crate::error::Result;
use crate::folder::ModelFolder;
use crate::memory_pressure::{PressureSource, PressureWatch};
use crate::model::OtherMachines;

/// The time that an idle engine waits for a request between two blocks that it saves, and that a step waits for a prefix from disk.
const SHORT_WAIT: Duration = Duration::from_millis(1);

/// A message to the engine thread.
pub(super) enum Message {
    /// Run the sequences of a checked request.
    Submit(Vec<Submission>),
    /// Returns the exactness of exact results through an adapter. The first such message for an adapter checks the widths of decode steps.
    CheckExactness(usize, Sender<Result<Exactness>>),
}

/// The models, caches and memory limits that an engine starts with.
pub(super) struct Resources {
    pub(super) device: Device,
    pub(super) draft_model: Option<DraftModel>,
    pub(super) encoder_cache: EncoderCache,
    pub(super) capacity: Capacity,
    pub(super) disk: Option<DiskCache>,
}

/// Owns the parts of the engine and all sequences; lives on one thread.
pub(super) struct EngineLoop {
    admission: Admission,
    runner: Runner,
    prefixes: Prefixes,
    speculation: Speculation,
    sequences: Sequences,
    /// Accepted tokens that have not been emitted.
    accepted: VecDeque<Accepted>,
    /// Ended sequences. The prefix cache may store their states.
    retired: Vec<Sequence>,
    panics: PanicGuard,
    pressure: PressureWatch,
    awake: Awake,
    folder: Arc<ModelFolder>,
    gauges: Arc<Gauges>,
    progress: StepReporter,
}

impl EngineLoop {
    pub(super) fn new(
        resources: Resources,
        folder: Arc<ModelFolder>,
        options: &EngineOptions,
        gauges: Arc<Gauges>,
    ) -> Result<Self> {
        let Resources { device, draft_model, encoder_cache, capacity, disk } = resources;
        let limit = options.prefix_cache.unwrap_or(capacity.shared() / 4);
        let pressure = options.memory_pressure.clone().unwrap_or_else(PressureSource::system);
        let shared = || (Arc::clone(&folder), Arc::clone(&gauges));
        let prefixes = Prefixes::new(limit, capacity.clone(), disk, shared())?;
        let progress = StepReporter::new(options.step_monitor.clone(), capacity.budget);
        let speculation = Speculation::new(draft_model, options, &capacity, shared());
        let shapes = device.shapes();
        let runner = Runner::new(device, encoder_cache, &capacity, Arc::clone(&gauges));
        let mut engine = Self {
            admission: Admission::new(capacity, options.max_running, shapes, Arc::clone(&gauges)),
            runner,
            prefixes,
            speculation,
            sequences: Sequences::default(),
            accepted: VecDeque::new(),
            retired: Vec::new(),
            panics: PanicGuard::default(),
            pressure: PressureWatch::new(pressure, Instant::now()),
            awake: Awake::system(),
            folder,
            gauges,
            progress,
        };
        engine.record_memory();
        Ok(engine)
    }

    /// Runs one step. At its beginning and end nothing is pending on the device except the first layers of the next step.
    fn step(&mut self) {
        self.awake.hold();
        self.free_memory();
        self.end_cancelled();
        self.prefixes.receive(&mut self.sequences, self.runner.device(), None);
        share(&mut self.sequences, self.runner.device());
        self.admit();
        let mut plan = self.plan();
        if plan.is_empty() {
            // All running sequences wait for the disk.
            self.prefixes.receive(&mut self.sequences, self.runner.device(), Some(SHORT_WAIT));
        }
        self.report_plan(&plan);
        self.prepare(&mut plan);
        self.compute(&plan);
        self.retire();
        self.prefixes.save_next();
        self.record_memory();
        self.panics.end_pass();
    }

    /// Starts as many sequences as admission allows. When one starts, the next sequence of its request is queued and may start too.
    fn admit(&mut self) {
        loop {
            let changes = self.admission.decide(&self.sequences);
            if changes != Changes::default() {
                self.drop_lookahead();
            }
            self.admission.apply(&changes, &mut self.sequences);
            let free = self.free_for_prefixes();
            self.prefixes.start(&changes.admit, free, &mut self.sequences, self.runner.device());
            let followed = changes.admit.iter().fold(false, |any, id| self.enqueue_after(*id) | any);
            if !followed {
                return;
            }
        }
    }

    /// Makes drafts and plans the step.
    fn plan(&mut self) -> StepPlan {
        let Self { admission, speculation, sequences, runner, panics, .. } = self;
        let unclaimed = admission.free().saturating_sub(self.prefixes.bytes(sequences));
        let rows = admission.decode_rows(sequences);
        speculation.propose(sequences, runner.device(), rows, unclaimed, panics);
        let plan = admission.plan(sequences, speculation.policy());
        panics.begin_pass(plan.ids());
        plan
    }

    /// Encodes pictures and shifts contexts before the passes of a plan. Sequences that fail here leave the plan.
    fn prepare(&mut self, plan: &mut StepPlan) {
        let encoded = self.runner.encode_media(plan, &mut self.sequences);
        self.recover(encoded.fault);
        self.fail(encoded.failed);
        if !self.runner.has_begun(plan) {
            self.drop_lookahead();
            plan.keep_decoding(|id| self.sequences.find(id).is_some_and(|it| it.run.is_some()));
        }
        let failed = self.runner.shift_full_states(plan, &mut self.sequences);
        self.fail(failed);
    }

    /// Runs the passes of a plan, draws tokens from them and emits the tokens.
    fn compute(&mut self, plan: &StepPlan) {
        let free = self.free_for_prefixes();
        let unclaimed = free.saturating_sub(self.prefixes.bytes(&self.sequences));
        let force = self.speculation.is_forced();
        let draws = self.runner.pending_draws(plan, &mut self.sequences, unclaimed, force);
        let budget = self.prefixes.checkpoint_budget(plan, &mut self.sequences, free);
        let mut work = self.runner.begin(budget, unclaimed / 2, draws.is_some());
        self.runner.start_prefill(plan, &mut self.sequences, &mut work);
        if self.runner.device().pipelined() {
            self.runner.start_decode(plan, &mut self.sequences, &mut work);
            self.emit();
            self.sequences.prepare_draws(&plan.draws());
            self.runner.look_ahead(draws.as_deref(), &mut self.sequences, &mut work);
            work.wait_for_prefill(&self.sequences, self.runner.device());
            work.wait_for_decode(self.runner.device());
            self.collect(&mut work);
            let fault = self.runner.confirm(work.waited_at(), &mut self.sequences);
            self.recover(fault);
        } else {
            // Here, issuing a pass blocks until the device has almost caught up, so running ahead gains nothing.
            work.wait_for_prefill(&self.sequences, self.runner.device());
            self.collect(&mut work);
            self.emit();
            self.sequences.prepare_draws(&plan.draws());
            self.runner.start_decode(plan, &mut self.sequences, &mut work);
            work.wait_for_decode(self.runner.device());
            self.collect(&mut work);
            self.emit();
        }
    }

    /// Removes the next step from the states, if its passes have begun.
    fn drop_lookahead(&mut self) {
        let fault = self.runner.drop_lookahead(&mut self.sequences);
        self.recover(fault);
    }

    /// Returns the bytes that prefixes may take: neither reserved nor used by features of pictures. Features beyond their share are evicted
    /// first.
    fn free_for_prefixes(&mut self) -> u64 {
        self.runner.shrink_features(self.admission.free())
    }

    /// Records the memory in use and the numbers of running and waiting sequences. The number of running sequences is recorded last, so
    /// that a reader that sees an idle engine sees its final memory too.
    fn record_memory(&mut self) {
        self.prefixes.record(&self.sequences);
        self.admission.record(&self.sequences);
        let others = self.runner.device().other_machines().map_or_else(Vec::new, OtherMachines::peaks);
        self.gauges.record_peaks(array::peak_memory().unwrap_or_default(), others);
    }
}
