//! Pipeline parallelism: this machine has the embedding, the first layers and the head; each worker has some of the later layers. A pass runs
//! through the machines one after the other.

use std::ops::Range;
use std::sync::Arc;

use mlx_rs::Array;
use xxhash_rust::xxh3::xxh3_128;

use super::divided::Divided;
use super::message::{Loaded, Reply, Request};
use super::pass::advance;
use super::remote_state::RemoteState;
use super::worker_pool::WorkerPool;
use crate::array;
use crate::cache::{SequenceState, Variant};
use crate::error::{Error, Result};
use crate::model::{Batch, Decoder, Footprint, Model, ModelSpec, Pass};

/// A model in pipeline mode.
pub(super) struct PipelineModel {
    spec: ModelSpec,
    divided: Divided,
    local: Decoder,
    /// The layers of each machine, this one first.
    ranges: Vec<Range<usize>>,
    pool: Arc<WorkerPool>,
}

impl PipelineModel {
    /// Creates the model from this machine's layers and workers that are ready.
    pub(super) fn new(
        divided: Divided,
        local: Decoder,
        ranges: Vec<Range<usize>>,
        footprint: Footprint,
        pool: WorkerPool,
        loaded: &[Loaded],
    ) -> Self {
        let mut spec = divided.spec().clone();
        spec.weight_bytes = local.spec().weight_bytes;
        spec.footprint = footprint;
        // A step begun early here would wait on the workers for the previous one.
        spec.first_half = 0;
        spec.remote_capacity = loaded.iter().zip(1..).map(|(worker, rank)| (worker.room, rank)).min();
        let parts: Vec<&str> = loaded.iter().map(|worker| worker.fingerprint.as_str()).collect();
        let whole = format!("{:032x} {ranges:?} {}", local.spec().fingerprint, parts.join(" "));
        spec.fingerprint = xxh3_128(whole.as_bytes());
        Self { spec, divided, local, ranges, pool: Arc::new(pool) }
    }

    /// Makes the worker at this index run the layers of a pass up to `end`.
    fn advance_there(
        &self,
        place: usize,
        pass: &mut Pass,
        end: usize,
        states: &mut [&mut SequenceState],
    ) -> Result<()> {
        let needs_hidden = end < self.spec.num_layers || pass.batch().needs_hidden();
        let (mut advance, rows) = advance(pass, pass.layer()..end, needs_hidden, states)?;
        advance.released = self.pool.take_released(place);
        let (dtype, shape) = (advance.dtype, advance.shape.clone());
        let expected = if needs_hidden { rows.len() } else { 0 };
        let (reply, rows) = self.pool.call(place, &Request::Advance(advance), &rows)?;
        match reply {
            Reply::Advanced { layer, states: infos }
                if infos.len() == states.len()
                    && (end..=self.ranges[place + 1].end).contains(&layer)
                    && rows.len() == expected =>
            {
                let hidden = needs_hidden.then(|| array::of_file(&rows, dtype, &shape)).transpose()?;
                pass.move_to(layer, hidden);
                for (state, info) in states.iter_mut().zip(infos) {
                    RemoteState::of(state)?.record(place, info);
                }
                Ok(())
            }
            Reply::Failed { message } => Err(Error::Distributed(format!("rank {}: {message}", place + 1))),
            _ => Err(self.pool.malformed(place)),
        }
    }
}

impl Model for PipelineModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn new_state(&self, variant: Variant) -> SequenceState {
        let remote = RemoteState::new(Arc::clone(&self.pool), self.divided.kinds(), variant);
        self.local.new_state(variant).with_store(Box::new(remote))
    }

    fn begin(&self, batch: Batch) -> Result<Pass> {
        self.local.begin(batch)
    }

    fn advance(&self, pass: &mut Pass, layers: usize, states: &mut [&mut SequenceState]) -> Result<()> {
        let mut end = pass.layer().saturating_add(layers).min(self.spec.num_layers);
        // Once the last layer with a state has run, its state does not show that the pass is unfinished. So the pass runs to the end.
        if self.divided.states_end_before(end) {
            end = self.spec.num_layers;
        }
        let here = self.ranges[0].end;
        if pass.layer() < here {
            self.local.advance(pass, end.min(here) - pass.layer(), states)?;
        }
        for (place, range) in self.ranges[1..].iter().enumerate() {
            if range.contains(&pass.layer()) && pass.layer() < end {
                self.advance_there(place, pass, end.min(range.end), states)?;
            }
        }
        Ok(())
    }

    fn shift(&self, state: &mut SequenceState, kept: usize, dropped: usize) -> Result<()> {
        self.local.shift(state, kept, dropped)
    }

    fn normalized(&self, hidden: &Array) -> Result<Array> {
        self.local.normalized(hidden)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        self.local.logits(hidden)
    }

    fn is_distributed(&self) -> bool {
        true
    }

    fn lost_worker(&self) -> Option<String> {
        self.pool.outage()
    }

    fn check_workers(&self, ask: bool) -> Result<()> {
        self.pool.check_workers(ask)
    }
}
