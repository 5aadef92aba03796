//! Turns the plan of a step into passes on the device, and waits for them. MLX reports a device error once, to the first waiter, whatever
//! work failed; so the decode passes are always waited for before anything else, and work that was on the device beside a failure is
//! computed again.

use std::collections::BTreeSet;
use std::time::Instant;

use super::device::{Device, PrefillChunk};
use crate::array::Rows;
use crate::cache::SequenceState;
use crate::engine::schedule::plan::{Chunk, Prefill, StepPlan};
use crate::engine::sequence::{Sequence, Sequences};
use crate::error::Result;
use crate::model::{LogitRows, Pass};

/// The passes of a step.
pub(in crate::engine) struct Work {
    decode: Vec<DecodePass>,
    prefill: Vec<PrefillPass>,
    /// The prefill work that was issued, and when.
    pub(in crate::engine) prefill_cost: f64,
    prefill_started: Instant,
    decode_started: Instant,
    /// How long the decode passes took, once they are waited for.
    pub(in crate::engine) decode_seconds: Option<f64>,
    /// The first error that was reported.
    pub(in crate::engine) fault: Option<String>,
    decode_ids: Vec<u64>,
    /// Whether no error had been reported when the decode passes were done.
    decode_is_sound: bool,
    prefill_ids: BTreeSet<u64>,
}

/// One decode pass: row `i` belongs to sequence `ids[i]`; ids rise.
pub(in crate::engine) struct DecodePass {
    pub(in crate::engine) ids: Vec<u64>,
    pub(in crate::engine) logits: Rows,
}

/// A prefill pass all of whose layers are issued.
pub(in crate::engine) struct PrefillPass {
    pub(in crate::engine) chunks: Vec<Chunk>,
    pub(in crate::engine) pass: Pass,
    /// The last rows of those chunks that end a prompt, in their order.
    pub(in crate::engine) logits: Option<Rows>,
}

impl Work {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            decode: Vec::new(),
            prefill: Vec::new(),
            prefill_cost: 0.0,
            prefill_started: now,
            decode_started: now,
            decode_seconds: None,
            fault: None,
            decode_ids: Vec::new(),
            decode_is_sound: false,
            prefill_ids: BTreeSet::new(),
        }
    }

    /// Keeps the first error.
    pub(in crate::engine) fn check(&mut self, outcome: Result<()>) {
        if let (None, Err(error)) = (&self.fault, outcome) {
            self.fault = Some(error.to_string());
        }
    }

    /// Waits for the decode passes, if that has not happened.
    pub(in crate::engine) fn wait_for_decode(&mut self) {
        if self.decode.is_empty() || self.decode_seconds.is_some() {
            return;
        }
        for index in 0..self.decode.len() {
            let outcome = self.decode[index].logits.wait();
            self.check(outcome);
        }
        self.decode_seconds = Some(self.decode_started.elapsed().as_secs_f64());
        self.decode_is_sound = self.fault.is_none();
        self.prefill_started = Instant::now();
    }

    /// Waits for the prefill passes. Decode passes must have been waited for.
    pub(in crate::engine) fn wait_for_prefill(&mut self, sequences: &Sequences) {
        let runs: Vec<_> =
            self.prefill_ids.iter().filter_map(|id| sequences.find(*id)?.run.as_ref()).collect();
        let outcomes: Vec<_> =
            runs.iter().map(|run| run.pass.as_ref().map_or_else(|| run.state.eval(), Pass::wait)).collect();
        for outcome in outcomes {
            self.check(outcome);
        }
        for index in 0..self.prefill.len() {
            let outcome = self.prefill[index].logits.as_ref().map_or(Ok(()), Rows::wait);
            self.check(outcome);
        }
    }

    /// Seconds since prefill had the device for itself.
    pub(in crate::engine) fn prefill_seconds(&self) -> f64 {
        self.prefill_started.elapsed().as_secs_f64()
    }

    /// Takes the decode passes, which were waited for; none if one of them may have failed.
    pub(in crate::engine) fn take_decode(&mut self) -> Vec<DecodePass> {
        if !self.decode_is_sound {
            return Vec::new();
        }
        std::mem::take(&mut self.decode)
    }

    /// Takes the prefill passes, which were waited for.
    pub(in crate::engine) fn take_prefill(&mut self) -> Vec<PrefillPass> {
        std::mem::take(&mut self.prefill)
    }

    /// The sequences that a fault may belong to.
    pub(in crate::engine) fn failed(&self) -> Vec<u64> {
        let decode = self.decode_ids.iter().filter(|_| !self.decode_is_sound);
        decode.chain(&self.prefill_ids).copied().collect()
    }
}

impl Device {
    /// Issues the decode passes of a plan.
    pub(in crate::engine) fn start_decode(&self, plan: &StepPlan, sequences: &mut Sequences) -> Work {
        let mut work = Work::new();
        work.decode_ids.clone_from(&plan.decode);
        // Exact rows need the widths that were checked; where one row of a step does, all of them run that way.
        let exact = plan.decode.iter().any(|id| sequences.get(*id).exact());
        for ids in plan.decode.chunks(self.most_rows(exact)) {
            match self.decode_pass(ids, sequences, exact) {
                Ok(pass) => work.decode.push(pass),
                Err(error) => work.check(Err(error)),
            }
        }
        work
    }

    fn decode_pass(&self, ids: &[u64], sequences: &mut Sequences, exact: bool) -> Result<DecodePass> {
        let (mut rows, mut states): (Vec<(u32, usize)>, Vec<&mut SequenceState>) = (Vec::new(), Vec::new());
        for sequence in sequences.several_mut(ids) {
            let newest = *sequence.history.tokens().last().expect("a history is never empty");
            let state = &mut sequence.running().state;
            rows.push((newest, state.offset()));
            states.push(state);
        }
        let logits = self.decode(&rows, &mut states, exact)?;
        Ok(DecodePass { ids: ids.to_vec(), logits })
    }

    /// Issues the prefill passes of a plan behind what is on the device already.
    pub(in crate::engine) fn start_prefill(
        &self,
        plan: &StepPlan,
        sequences: &mut Sequences,
        work: &mut Work,
    ) {
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
        let needs_hidden =
            chunks.iter().any(|chunk| chunk.ends_prompt) || running.iter().any(|it| it.reader.is_on());
        // Only a pass over one chunk stops before the last layer.
        let mut pass = match running[0].running().pass.take() {
            Some(pass) => pass,
            None => self.begin(chunks, &mut running, work)?,
        };
        let mut states: Vec<_> = running.iter_mut().map(|it| &mut it.running().state).collect();
        self.advance(&mut pass, *layers, &mut states, needs_hidden)?;
        if pass.layer() < self.layers() {
            running[0].running().pass = Some(pass);
            return Ok(());
        }
        let ends = chunks.iter().any(|chunk| chunk.ends_prompt);
        let logits = ends.then(|| self.logits(&pass)).transpose()?;
        work.prefill.push(PrefillPass { chunks: chunks.clone(), pass, logits });
        Ok(())
    }

    /// Begins a pass over the chunks of some sequences, in the same order.
    fn begin(&self, chunks: &[Chunk], running: &mut [&mut Sequence], work: &mut Work) -> Result<Pass> {
        for sequence in running.iter_mut() {
            let keep = sequence.limits.keep;
            let state = &mut sequence.running().state;
            if self.must_shift(state, keep) {
                work.wait_for_decode();
                self.shift_if_full(state, keep)?;
            }
        }
        let mut spans = Vec::with_capacity(chunks.len());
        for (chunk, sequence) in chunks.iter().zip(running) {
            let start = sequence.running().state.offset();
            let logits = if chunk.ends_prompt { LogitRows::Last } else { LogitRows::None };
            let tokens = &sequence.history.tokens()[chunk.range.clone()];
            spans.push(PrefillChunk { tokens, start, logits });
        }
        match spans.as_slice() {
            [only] if chunks[0].replay => self.begin_replay(only.tokens, only.start),
            all => self.begin_prefill(all),
        }
    }
}
