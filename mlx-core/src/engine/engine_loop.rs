//! The engine: its loop admits, plans, runs, draws, accepts and emits. Invariant: every request of every front end goes through it.

mod ahead;
mod attend;
mod encode_images;
mod ends;
mod figures;
mod panic_guard;
mod panics;
mod propose;
mod queue;
mod relief;
mod turn;
mod verify;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use self::panic_guard::PanicGuard;
use self::queue::Queue;
pub(super) use self::queue::Submission;
use super::capacity::Capacity;
use super::drafters::Drafters;
use super::event::FinishReason;
use super::options::{EngineOptions, Exactness};
use super::output::{Accepted, accept};
use super::pictures::EncoderCache;
use super::prefix::Prefixes;
use super::run::ahead::Ahead;
use super::run::device::Device;
use super::run::draft_model::DraftModel;
use super::run::executor::{PrefillPass, Work};
use super::schedule::Scheduler;
use super::schedule::plan::{Changes, Chunk, SequenceView, StepPlan};
use super::sequence::{Sequence, Sequences};
use super::stats::Gauges;
use crate::array::Rows;
use crate::awake::Awake;
use crate::cache::DiskCache;
use crate::error::Result;
use crate::folder::ModelFolder;
use crate::memory_pressure::{PressureSource, PressureWatch};
use crate::model::Pass;
use crate::sampling::{Draw, DrawRequest, Sampler, Scratch};

/// How long an idle engine waits for a request between two blocks that it saves, and for a prefix from disk.
const SHORT_WAIT: Duration = Duration::from_millis(1);

/// What the engine thread is asked for.
pub(super) enum Message {
    /// Run the sequences of a checked request.
    Submit(Vec<Submission>),
    /// Say how far exact results through an adapter can be repeated. The first time, this checks the widths of decode steps.
    ExactLevel(usize, Sender<Result<Exactness>>),
}

/// Owns the model and all sequences; lives on one thread.
pub(super) struct EngineLoop {
    device: Device,
    folder: Arc<ModelFolder>,
    capacity: Capacity,
    queue: Queue,
    scheduler: Scheduler,
    sequences: Sequences,
    prefixes: Prefixes,
    drafters: Drafters,
    draft_model: Option<DraftModel>,
    encoder_cache: EncoderCache,
    /// The first layers of the next step.
    ahead: Option<Ahead>,
    /// Tokens that were accepted and are to be emitted.
    accepted: VecDeque<Accepted>,
    /// Sequences that have ended and whose states may be kept.
    retired: Vec<Sequence>,
    scratch: Scratch,
    panics: PanicGuard,
    pressure: PressureWatch,
    awake: Awake,
    gauges: Arc<Gauges>,
    start: Instant,
    last_id: u64,
}

impl EngineLoop {
    pub(super) fn new(
        device: Device,
        (draft_model, encoder_cache): (Option<DraftModel>, EncoderCache),
        capacity: Capacity,
        folder: Arc<ModelFolder>,
        options: &EngineOptions,
        disk: Option<DiskCache>,
        gauges: Arc<Gauges>,
    ) -> Result<Self> {
        let limit = options.prefix_cache.unwrap_or(capacity.shared() / 4);
        let scheduler = Scheduler::new(options.max_running, capacity.shared(), device.shapes());
        let pressure = options.memory_pressure.clone().unwrap_or_else(PressureSource::system);
        let prefixes = Prefixes::new(limit, &capacity, disk, Arc::clone(&folder), Arc::clone(&gauges))?;
        let (custom, model) = (options.drafter.clone(), draft_model.as_ref().map(DraftModel::kind));
        let drafters = Drafters::new(custom, model, options.always_draft, Arc::clone(&folder));
        let mut engine = Self {
            device,
            folder,
            capacity,
            queue: Queue::default(),
            scheduler,
            sequences: Sequences::default(),
            prefixes,
            drafters,
            draft_model,
            encoder_cache,
            ahead: None,
            accepted: VecDeque::new(),
            retired: Vec::new(),
            scratch: Scratch::default(),
            panics: PanicGuard::default(),
            pressure: PressureWatch::new(pressure, Instant::now()),
            awake: Awake::system(),
            gauges,
            start: Instant::now(),
            last_id: 0,
        };
        engine.record_memory();
        Ok(engine)
    }

    /// One step. Nothing is pending on the device when it begins and when it ends but what ran ahead.
    fn step(&mut self) {
        self.awake.hold();
        self.relieve();
        self.end_cancelled();
        self.prefixes.receive(&mut self.sequences, &self.device, None);
        self.sequences.share(&self.device);
        self.admit();
        self.propose();
        let mut plan = self.scheduler.plan(&self.views());
        tracing::trace!(?plan, "step");
        self.panics.begin_pass(plan.ids());
        if plan.is_empty() {
            // All that runs waits for the disk.
            self.prefixes.receive(&mut self.sequences, &self.device, Some(SHORT_WAIT));
        }
        self.encode_images(&mut plan);
        let ahead = self.take_ahead(&mut plan);
        self.shift_full_states(&mut plan);
        let outlook = self.outlook(&plan);
        let free = self.free_for_prefixes();
        let room = self.prefixes.checkpoint_room(&plan, &mut self.sequences, free);
        let since = ahead.as_ref().map_or_else(Instant::now, |ahead| ahead.since);
        let mut work = Work::new(room, outlook.is_some(), since);
        self.device.start_prefill(&plan, &mut self.sequences, &mut work);
        if self.device.pipelined() {
            self.device.start_decode(&plan, ahead, &mut self.sequences, &mut work);
            self.emit();
            self.prepare_draws(&plan);
            self.run_ahead(outlook.as_deref(), &mut work);
            work.wait_for_prefill(&self.sequences);
            work.wait_for_decode();
            self.collect(&mut work);
            self.settle(work.waited_at());
        } else {
            // Issuing blocks here until the device has almost caught up, so the host gains nothing by running ahead.
            work.wait_for_prefill(&self.sequences);
            self.collect(&mut work);
            self.emit();
            self.prepare_draws(&plan);
            self.device.start_decode(&plan, None, &mut self.sequences, &mut work);
            work.wait_for_decode();
            self.collect(&mut work);
            self.emit();
        }
        self.retire();
        self.prefixes.save_next();
        self.record_memory();
        self.panics.end_pass();
    }

    /// Computes what the draws of this step need besides logits.
    fn prepare_draws(&mut self, plan: &StepPlan) {
        self.sequences.prepare_draws(&plan.draws());
    }

    fn views(&self) -> Vec<SequenceView> {
        let view = |(id, sequence): (u64, &Sequence)| {
            let covered = sequence.history.len() < sequence.reservation.tokens;
            let growth = if covered { 0 } else { self.capacity.extend(&mut sequence.reservation.clone()) };
            sequence.view(id, growth)
        };
        self.sequences.iter().map(view).collect()
    }

    /// Starts what may run, until nothing more follows it in line.
    fn admit(&mut self) {
        loop {
            let changes = self.scheduler.admit(&self.views(), self.start.elapsed());
            tracing::trace!(?changes, "admit");
            self.apply(&changes);
            let followed = changes.admit.iter().fold(false, |any, id| self.line_up_after(*id) | any);
            if !followed {
                return;
            }
        }
    }

    fn apply(&mut self, changes: &Changes) {
        if *changes != Changes::default() {
            self.drop_ahead();
        }
        for &id in &changes.grow {
            self.capacity.extend(&mut self.sequences.get_mut(id).reservation);
        }
        for &id in &changes.preempt {
            self.preempt(id);
        }
        let free = self.free_for_prefixes();
        let Self { prefixes, sequences, device, .. } = self;
        let find = |id: &u64| prefixes.find(*id, sequences.get_mut(*id), device);
        let known: Vec<_> = changes.admit.iter().map(find).collect();
        prefixes.make_room(sequences, free);
        for (&id, known) in changes.admit.iter().zip(known) {
            self.prefixes.start(id, known, &mut self.sequences, &self.device);
        }
    }

    /// Drops a sequence's state, which a replay brings back; its tokens stay.
    fn preempt(&mut self, id: u64) {
        self.sequences.get_mut(id).run = None;
        Gauges::add(&self.gauges.preemptions, 1);
    }

    /// Makes room in full states before anything of the step is on the device: a context shift is evaluated at once.
    fn shift_full_states(&mut self, plan: &mut StepPlan) {
        let Self { device, sequences, .. } = self;
        let mut failed = Vec::new();
        for &id in &plan.decode {
            let sequence = sequences.get_mut(id);
            let keep = sequence.limits.keep;
            if let Err(error) = device.shift_if_full(&mut sequence.running().state, keep) {
                failed.push((id, error));
            }
        }
        for (id, error) in failed {
            plan.decode.retain(|it| *it != id);
            self.end(id, FinishReason::Error(error.to_string()));
        }
    }

    /// Draws from the passes that were waited for, and accepts what was drawn.
    fn collect(&mut self, work: &mut Work) {
        if let Some((ids, message)) = work.take_fault() {
            self.recover(&ids, &message);
        }
        let (prefill, decode) = (work.take_prefill(), work.take_decode());
        let rows = decode.iter().flat_map(|pass| &pass.rows).sum();
        self.scheduler.record(
            work.take_prefill_time(),
            work.decode_seconds.filter(|_| rows > 0).map(|seconds| (rows, seconds)),
        );
        for pass in prefill {
            self.end_prefill(&pass);
        }
        for pass in decode {
            self.draw_decoded(&pass);
        }
    }

    /// Draws a token for each of the sequences that still exists, from the row beside its id, and accepts them. Ids rise.
    fn draw(&mut self, rows: &[(u64, usize)], logits: &Rows) {
        let Self { sequences, scratch, .. } = self;
        let (ids, rows): (Vec<u64>, Vec<usize>) =
            rows.iter().filter(|(id, _)| sequences.find(*id).is_some()).copied().unzip();
        let request = |(sequence, row)| {
            let Sequence { sampler, history, .. }: &mut Sequence = sequence;
            DrawRequest { row, sampler, history }
        };
        let mut requests: Vec<DrawRequest> =
            sequences.several_mut(&ids).into_iter().zip(rows).map(request).collect();
        match Sampler::draw(logits, &mut requests, scratch) {
            Ok(outcomes) => {
                for (id, outcome) in ids.into_iter().zip(outcomes) {
                    self.accept(id, outcome);
                }
            }
            Err(error) => self.recover(&ids, &error.to_string()),
        }
    }

    /// Accepts what was drawn for a sequence; a row that cannot be drawn from ends its sequence and no other.
    fn accept(&mut self, id: u64, outcome: Result<Draw>) {
        match outcome {
            Ok(draw) => {
                let sequence = self.sequences.get_mut(id);
                sequence.quarantined = false;
                self.accepted.push_back(accept(id, sequence, draw));
                let length = sequence.history.len();
                self.device.renew_variant(&mut sequence.running().state, length);
            }
            Err(error) => self.end(id, FinishReason::Error(error.to_string())),
        }
    }

    /// A prefill pass was computed: hidden states are read, and first tokens are drawn at the ends of prompts.
    fn end_prefill(&mut self, done: &PrefillPass) {
        let PrefillPass { chunks, pass, logits } = done;
        let (mut rows, mut row) = (Vec::new(), 0);
        for chunk in chunks {
            self.panics.alone = Some(chunk.id);
            let draws = self.end_chunk(chunk, pass);
            self.panics.alone = None;
            if draws {
                let ids = self.sequences.share_whole_prompt(chunk.id, &self.device);
                rows.extend(ids.into_iter().chain([chunk.id]).map(|id| (id, row)));
            }
            row += usize::from(chunk.ends_prompt);
        }
        rows.sort_unstable();
        if let Some(logits) = logits {
            self.draw(&rows, logits);
        }
    }

    /// Counts and reads a chunk that was computed; true if a first token is to be drawn from its end.
    fn end_chunk(&mut self, chunk: &Chunk, pass: &Pass) -> bool {
        let Some(sequence) = self.sequences.find(chunk.id) else { return false };
        let in_prompt = chunk.range.end <= sequence.history.prompt_length();
        if in_prompt {
            Gauges::add(&self.gauges.prompt_tokens, chunk.range.len());
            if !chunk.ends_prompt {
                sequence.report_progress(chunk.range.end);
            }
        }
        if in_prompt && sequence.reader.is_on() {
            let sequence = self.sequences.get_mut(chunk.id);
            let model = self.device.model(sequence.adapter());
            let outcome = sequence.read(model, pass, chunk, &mut self.scratch);
            if let Err(error) = outcome {
                self.end(chunk.id, FinishReason::Error(error.to_string()));
                return false;
            }
        }
        self.sequences.get_mut(chunk.id).drop_features_before(chunk.range.end);
        if chunk.ends_prompt && self.sequences.get(chunk.id).limits.max_tokens == 0 {
            self.sequences.get_mut(chunk.id).mark_token();
            self.end(chunk.id, FinishReason::Length);
            return false;
        }
        chunk.ends_prompt
    }

    /// A pass of these sequences failed. They start over from their tokens, each alone, so that the one at fault ends and the others go on.
    fn recover(&mut self, ids: &[u64], message: &str) {
        let present: Vec<u64> = ids.iter().copied().filter(|id| self.sequences.find(*id).is_some()).collect();
        for &id in &present {
            let sequence = self.sequences.get_mut(id);
            if sequence.quarantined || present.len() == 1 {
                self.end(id, FinishReason::Error(message.to_owned()));
            } else {
                sequence.quarantined = true;
                self.scheduler.requeue(id);
                self.preempt(id);
            }
        }
    }
}
