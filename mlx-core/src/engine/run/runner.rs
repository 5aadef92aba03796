//! The runner: issues the passes of a step, waits for them and draws from their logits. Invariant: it owns the device. It returns a device
//! error as a value, with the sequences that must be recomputed.

mod lookahead;
mod media;

use std::sync::Arc;
use std::time::Instant;

use super::device::Device;
use super::executor::{Fault, Work};
use super::lookahead::Lookahead;
use crate::array::Rows;
use crate::engine::capacity::Capacity;
use crate::engine::media::EncoderCache;
use crate::engine::schedule::plan::{Chunk, StepPlan};
use crate::engine::sequence::{Sequence, Sequences};
use crate::engine::stats::Gauges;
use crate::error::{Error, Result};
use crate::model::Pass;
use crate::sampling::{Draw, DrawRequest, Sampler, Scratch};

/// The device, the vision tower and the first layers of the next step.
pub(in crate::engine) struct Runner {
    device: Device,
    encoder_cache: EncoderCache,
    lookahead: Option<Lookahead>,
    /// Bytes of a checkpoint; 0 if states can be truncated anywhere.
    checkpoint_bytes: u64,
    scratch: Scratch,
    gauges: Arc<Gauges>,
}

/// A sequence that ends with its own error.
pub(in crate::engine) struct Failure {
    pub(in crate::engine) id: u64,
    pub(in crate::engine) error: Error,
}

impl Runner {
    pub(in crate::engine) fn new(
        device: Device,
        encoder_cache: EncoderCache,
        capacity: &Capacity,
        gauges: Arc<Gauges>,
    ) -> Self {
        let checkpoint_bytes = capacity.checkpoint_bytes();
        let scratch = Scratch::default();
        Self { device, encoder_cache, lookahead: None, checkpoint_bytes, scratch, gauges }
    }

    /// Returns the device, for queries about states and shapes.
    pub(in crate::engine) fn device(&self) -> &Device {
        &self.device
    }

    /// Begins a step. Its checkpoints may take `checkpoint_bytes`, and its pools may take `pool_bytes` beyond their reservations.
    /// `overlaps` is true if the next step may begin before this one's draws.
    pub(in crate::engine) fn begin(&self, checkpoint_bytes: u64, pool_bytes: u64, overlaps: bool) -> Work {
        let since = self.lookahead.as_ref().map_or_else(Instant::now, |lookahead| lookahead.since);
        Work::new(checkpoint_bytes, pool_bytes, overlaps, since)
    }

    /// Issues the prefill passes of a plan.
    pub(in crate::engine) fn start_prefill(
        &self,
        plan: &StepPlan,
        sequences: &mut Sequences,
        work: &mut Work,
    ) {
        self.device.start_prefill(plan, sequences, work);
    }

    /// Issues the decode passes of a plan, or the remaining layers of a pass that began early.
    pub(in crate::engine) fn start_decode(
        &mut self,
        plan: &StepPlan,
        sequences: &mut Sequences,
        work: &mut Work,
    ) {
        self.device.start_decode(plan, self.lookahead.take(), sequences, work);
    }

    /// Shifts the contexts of full states. This precedes all other work of the step, since a context shift is evaluated at once.
    pub(in crate::engine) fn shift_full_states(
        &self,
        plan: &mut StepPlan,
        sequences: &mut Sequences,
    ) -> Vec<Failure> {
        let mut failed = Vec::new();
        for &id in &plan.decode {
            let sequence = sequences.get_mut(id);
            let n_keep = sequence.limits.n_keep;
            if let Err(error) = self.device.shift_if_full(&mut sequence.running().state, n_keep) {
                failed.push(Failure { id, error });
            }
        }
        plan.decode.retain(|id| failed.iter().all(|failure| failure.id != *id));
        failed
    }

    /// Draws a token for each sequence from the row paired with its id. Sequences that have ended are skipped. `rows` must be in ascending
    /// order of id.
    pub(in crate::engine) fn draw(
        &mut self,
        rows: &[(u64, usize)],
        logits: &Rows,
        sequences: &mut Sequences,
    ) -> Result<Vec<(u64, Result<Draw>)>, Fault> {
        let (ids, rows): (Vec<u64>, Vec<usize>) =
            rows.iter().filter(|(id, _)| sequences.find(*id).is_some()).copied().unzip();
        let request = |(sequence, row)| {
            let Sequence { sampler, history, .. }: &mut Sequence = sequence;
            DrawRequest { row, sampler, history }
        };
        let mut requests: Vec<DrawRequest> =
            sequences.several_mut(&ids).into_iter().zip(rows).map(request).collect();
        match Sampler::draw(logits, &mut requests, &mut self.scratch) {
            Ok(outcomes) => Ok(ids.into_iter().zip(outcomes).collect()),
            Err(error) => Err(Fault { ids, message: error.to_string() }),
        }
    }

    /// Reads the hidden states of a computed prompt chunk, for scores or an embedding. The chunk begins at row `start` of the pass.
    pub(in crate::engine) fn read(
        &mut self,
        chunk: &Chunk,
        (pass, start): (&Pass, usize),
        sequence: &mut Sequence,
    ) -> Result<()> {
        let model = self.device.model(sequence.adapter());
        sequence.read(model, (pass, start), chunk, &mut self.scratch)
    }

    /// Drops data that a panic may have left partly written.
    pub(in crate::engine) fn reset(&mut self) {
        self.lookahead = None;
        self.scratch = Scratch::default();
        self.encoder_cache.clear();
    }
}
