//! Turns the plan of a step into passes on the device, prefill before decode, and waits for them in that order. MLX reports a device error
//! once, to the first waiter, regardless of which work failed. So all work that ran concurrently with a failure is recomputed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::decode_pass::DecodePass;
use super::device::Device;
use super::lookahead::Lookahead;
use super::prefill_chunk::PrefillChunk;
use crate::array::Rows;
use crate::cache::SequenceState;
use crate::engine::schedule::plan::{Chunk, Prefill, StepPlan};
use crate::engine::sequence::{Run, Sequence, Sequences};
use crate::error::Result;
use crate::model::{LogitRows, MTP_HISTORY, Pass};

/// The passes of a step.
pub(in crate::engine) struct Work {
    /// The remaining bytes for checkpoints of prompts.
    checkpoint_budget: u64,
    /// Bytes that pools may take beyond their reservations.
    pool_bytes: u64,
    /// True if the first layers of a decode pass can be waited for separately.
    in_halves: bool,
    prefill: Vec<PrefillPass>,
    /// The cost of the issued prefill work.
    prefill_cost: f64,
    decode: Vec<DecodePass>,
    /// The time at which the device began to work on the pending passes only.
    started: Instant,
    /// The durations of the prefill and decode passes, once they have finished without an error.
    prefill_seconds: Option<f64>,
    decode_seconds: Option<f64>,
    /// The first reported error.
    fault: Option<String>,
    prefill_ids: BTreeSet<u64>,
    decode_ids: Vec<u64>,
}

/// A device error, and the sequences that may have caused it.
pub(in crate::engine) struct Fault {
    pub(in crate::engine) ids: Vec<u64>,
    pub(in crate::engine) message: String,
}

/// The results of the finished passes.
pub(in crate::engine) struct Done {
    /// A device error. The passes of its sequences are not included here.
    pub(in crate::engine) fault: Option<Fault>,
    pub(in crate::engine) prefill: Vec<PrefillPass>,
    pub(in crate::engine) decode: Vec<DecodePass>,
    /// The cost of the prefill and its seconds.
    pub(in crate::engine) prefill_time: Option<(f64, f64)>,
    /// The rows of the decode passes and their seconds.
    pub(in crate::engine) decode_time: Option<(usize, f64)>,
}

/// A prefill pass with all layers issued.
pub(in crate::engine) struct PrefillPass {
    pub(in crate::engine) chunks: Vec<Chunk>,
    pub(in crate::engine) pass: Pass,
    /// The logits of the last rows of the chunks that end a prompt, in order.
    pub(in crate::engine) logits: Option<Rows>,
}

impl Work {
    /// Creates a step without passes. Checkpoints of prompts may take `checkpoint_budget` bytes, and pools `pool_bytes` beyond their
    /// reservations. With `in_halves`, the first layers of a decode pass can be waited for. The device has worked on the passes since
    /// `started`.
    pub(super) fn new(checkpoint_budget: u64, pool_bytes: u64, in_halves: bool, started: Instant) -> Self {
        Self {
            checkpoint_budget,
            pool_bytes,
            in_halves,
            prefill: Vec::new(),
            prefill_cost: 0.0,
            decode: Vec::new(),
            started,
            prefill_seconds: None,
            decode_seconds: None,
            fault: None,
            prefill_ids: BTreeSet::new(),
            decode_ids: Vec::new(),
        }
    }

    /// Returns the time at which the last wait ended.
    pub(in crate::engine) fn waited_at(&self) -> Instant {
        self.started
    }

    /// Returns the decode pass, if it is the only pass.
    pub(super) fn only_decode(&self) -> Option<&DecodePass> {
        self.decode
            .first()
            .filter(|_| self.fault.is_none() && self.decode.len() == 1 && self.prefill.is_empty())
    }

    /// Stores the error of an outcome, if it is the first one.
    pub(super) fn check(&mut self, outcome: Result<()>) {
        if let (None, Err(error)) = (&self.fault, outcome) {
            self.fault = Some(error.to_string());
        }
    }

    /// Waits for the prefill passes, unless that has already happened.
    pub(in crate::engine) fn wait_for_prefill(&mut self, sequences: &Sequences, device: &Device) {
        if self.prefill_seconds.is_some() {
            return;
        }
        let runs = self.prefill_ids.iter().filter_map(|id| sequences.find(*id)?.run.as_ref());
        let wait = |run: &Run| run.pass.as_ref().map_or_else(|| run.state.eval(), Pass::wait);
        let outcomes: Vec<_> = runs.map(wait).collect();
        let logits = self.prefill.iter().filter_map(|pass| pass.logits.as_ref());
        let outcomes: Vec<_> = outcomes.into_iter().chain(logits.map(Rows::wait)).collect();
        for outcome in outcomes {
            self.check(outcome);
        }
        // The chunks of a long prompt overlap on the machines, so others are not waited for.
        if self.prefill.iter().any(|it| it.pass.batch().needs_hidden()) {
            self.check(device.wait_for_others());
        }
        self.prefill_seconds = self.elapsed();
    }

    /// Waits for the decode passes. The prefill passes must have finished.
    pub(in crate::engine) fn wait_for_decode(&mut self, device: &Device) {
        let outcomes: Vec<_> = self.decode.iter().map(|pass| pass.logits.wait()).collect();
        for outcome in outcomes {
            self.check(outcome);
        }
        if !self.decode.is_empty() {
            self.check(device.wait_for_others());
        }
        self.decode_seconds = self.elapsed();
    }

    /// Returns the time since the last wait, and starts measuring anew; `None` after an error.
    fn elapsed(&mut self) -> Option<f64> {
        let started = std::mem::replace(&mut self.started, Instant::now());
        self.fault.is_none().then(|| (self.started - started).as_secs_f64())
    }

    /// Takes the results of the finished passes.
    pub(in crate::engine) fn take_done(&mut self) -> Done {
        let fault = self.take_fault();
        let (prefill, decode) = (std::mem::take(&mut self.prefill), std::mem::take(&mut self.decode));
        let prefill_time = self.prefill_seconds.filter(|_| self.prefill_cost > 0.0);
        let prefill_time = prefill_time.map(|seconds| (std::mem::take(&mut self.prefill_cost), seconds));
        let rows = decode.iter().flat_map(|pass| &pass.rows).sum();
        let decode_time = self.decode_seconds.filter(|_| rows > 0).map(|seconds| (rows, seconds));
        Done { fault, prefill, decode, prefill_time, decode_time }
    }

    /// Takes the reported error with the sequences that may have caused it, those of all passes that have not finished successfully. Drops
    /// these passes.
    fn take_fault(&mut self) -> Option<Fault> {
        let message = self.fault.take()?;
        let mut ids = Vec::new();
        if self.prefill_seconds.is_none() {
            self.prefill.clear();
            ids.extend(std::mem::take(&mut self.prefill_ids));
        }
        if self.decode_seconds.is_none() {
            self.decode.clear();
            ids.append(&mut self.decode_ids);
        }
        Some(Fault { ids, message })
    }
}

impl Device {
    /// Issues the decode passes of a plan after the work on the device, or the remaining layers of a pass that began early.
    pub(super) fn start_decode(
        &self,
        plan: &StepPlan,
        begun: Option<Lookahead>,
        sequences: &mut Sequences,
        work: &mut Work,
    ) {
        work.decode_ids.clone_from(&plan.decode);
        if let Some(lookahead) = begun {
            match self.finish(lookahead, sequences) {
                Ok(pass) => work.decode.push(pass),
                Err(error) => work.check(Err(error)),
            }
            return;
        }
        let mut by_adapter: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for &id in &plan.decode {
            by_adapter.entry(sequences.get(id).adapter()).or_default().push(id);
        }
        for (adapter, ids) in by_adapter {
            // Exact rows require a checked width. If a step has one exact row, all its rows run at such a width.
            let exact = ids.iter().any(|id| sequences.get(*id).exact());
            for ids in ids.chunks(self.most_rows(adapter, exact)) {
                match self.decode_pass(adapter, ids, plan, sequences, (exact, work)) {
                    Ok(pass) => work.decode.push(pass),
                    Err(error) => work.check(Err(error)),
                }
            }
        }
    }

    fn decode_pass(
        &self,
        adapter: usize,
        ids: &[u64],
        plan: &StepPlan,
        sequences: &mut Sequences,
        (exact, work): (bool, &Work),
    ) -> Result<DecodePass> {
        let spare = self.positions(work.pool_bytes) / ids.len().max(1);
        let (mut tokens, mut states): (Vec<(Vec<u32>, usize)>, Vec<&mut SequenceState>) = Default::default();
        for (id, sequence) in ids.iter().zip(sequences.several_mut(ids)) {
            let newest = *sequence.history.tokens().last().expect("a history is never empty");
            let drafted = plan.drafted(*id);
            let draft = sequence.drafts.iter().flat_map(|it| &it.draft.tokens).take(drafted).copied();
            let rows = std::iter::once(newest).chain(draft).collect();
            let shift = sequence.media.shift_at(sequence.history.len());
            let promised = sequence.reservation.tokens.min(self.context()) + spare;
            let state = &mut sequence.running().state;
            state.set_position_shift(shift);
            state.promise(promised);
            if drafted > 0 {
                state.record_snapshots(true);
            }
            tokens.push((rows, state.offset()));
            states.push(state);
        }
        let (logits, pass, front) = self.verify(adapter, &tokens, &mut states, exact, work.in_halves)?;
        let is_read = ids.iter().any(|id| sequences.get(*id).is_drafted_by_head());
        let hidden = is_read.then(|| self.hidden(adapter, &pass)).transpose()?;
        let rows = tokens.iter().map(|it| it.0.len()).collect();
        Ok(DecodePass { ids: ids.to_vec(), rows, logits, hidden, front })
    }

    /// Issues the prefill passes of a plan.
    pub(super) fn start_prefill(&self, plan: &StepPlan, sequences: &mut Sequences, work: &mut Work) {
        for prefill in &plan.prefill {
            if work.fault.is_some() {
                return;
            }
            work.prefill_ids.extend(prefill.chunks.iter().map(|chunk| chunk.id));
            let outcome = self.prefill(prefill, sequences, work);
            work.check(outcome);
            work.prefill_cost += prefill.cost;
        }
    }

    /// Issues layers of a prefill pass, and the logits of the prompts that it ends.
    fn prefill(&self, prefill: &Prefill, sequences: &mut Sequences, work: &mut Work) -> Result<()> {
        let Prefill { chunks, layers, .. } = prefill;
        let ids: Vec<u64> = chunks.iter().map(|chunk| chunk.id).collect();
        let mut running = sequences.several_mut(&ids);
        let adapter = running[0].adapter();
        let is_kept = chunks.iter().zip(&running).any(|(chunk, sequence)| keeps_hidden(sequence, chunk));
        // Only a pass over a single chunk stops before the last layer.
        let mut pass = match running[0].running().pass.take() {
            Some(pass) => pass,
            None => self.begin(adapter, chunks, &mut running)?,
        };
        let mut states: Vec<_> = running.iter_mut().map(|it| &mut it.running().state).collect();
        self.advance(adapter, &mut pass, *layers, &mut states)?;
        if pass.layer() < self.layers() {
            running[0].running().pass = Some(pass);
            return Ok(());
        }
        let ends = chunks.iter().any(|chunk| chunk.ends_prompt);
        let logits = ends.then(|| self.logits(adapter, &pass)).transpose()?;
        if is_kept {
            self.keep_hidden(adapter, &pass, chunks, &mut running)?;
        }
        for sequence in running {
            work.checkpoint_budget = sequence.take_checkpoint(self, work.checkpoint_budget)?;
        }
        work.prefill.push(PrefillPass { chunks: chunks.clone(), pass, logits });
        Ok(())
    }

    /// Stores the hidden states of these chunks for a head that drafts.
    fn keep_hidden(
        &self,
        adapter: usize,
        pass: &Pass,
        chunks: &[Chunk],
        running: &mut [&mut Sequence],
    ) -> Result<()> {
        let hidden = self.hidden(adapter, pass)?;
        let mut row = 0;
        for (chunk, sequence) in chunks.iter().zip(running) {
            let end = row + chunk.range.len();
            if sequence.is_drafted_by_head() {
                sequence.running().hidden.add(chunk.range.start, hidden.rows(row..end)?)?;
            }
            row = end;
        }
        Ok(())
    }

    /// Begins a pass over one chunk of each sequence; `chunks` and `running` are in the same order.
    fn begin(&self, adapter: usize, chunks: &[Chunk], running: &mut [&mut Sequence]) -> Result<Pass> {
        for sequence in running.iter_mut() {
            let n_keep = sequence.limits.n_keep;
            self.shift_if_full(&mut sequence.running().state, n_keep)?;
        }
        for (chunk, sequence) in chunks.iter().zip(running.iter_mut()) {
            let shift = sequence.media.shift_at(chunk.range.start);
            sequence.running().state.set_position_shift(shift);
        }
        let mut spans = Vec::with_capacity(chunks.len());
        for (chunk, sequence) in chunks.iter().zip(running) {
            let start = sequence.running().state.offset();
            let logits = if chunk.ends_prompt { LogitRows::Last } else { LogitRows::None };
            let tokens = &sequence.history.tokens()[chunk.range.clone()];
            let features = sequence.features_within(&chunk.range)?;
            let audio = sequence.media.audio_within(&chunk.range);
            let positions = sequence.media.positions(&chunk.range);
            let shift = sequence.media.shift_at(chunk.range.start);
            let needs_hidden = sequence.reader.is_on() || keeps_hidden(sequence, chunk);
            spans.push(PrefillChunk {
                tokens,
                start,
                logits,
                needs_hidden,
                features,
                audio,
                positions,
                shift,
            });
        }
        match spans.as_slice() {
            [only] if chunks[0].replay => self.begin_replay(adapter, only),
            all => self.begin_prefill(adapter, all),
        }
    }
}

/// Returns true if the hidden states of a prompt chunk are stored for a head that drafts.
fn keeps_hidden(sequence: &Sequence, chunk: &Chunk) -> bool {
    sequence.is_drafted_by_head() && chunk.range.end + MTP_HISTORY > sequence.history.len()
}
