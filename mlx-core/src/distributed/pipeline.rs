//! Pipeline parallelism: this machine has the embedding, the first layers and the head; each worker has some of the later layers. A pass runs
//! through the machines one after the other, around the ring.

use std::ops::Range;
use std::sync::Arc;

use mlx_rs::Array;
use mlx_rs::transforms::async_eval;
use xxhash_rust::xxh3::xxh3_128;

use super::divided::Divided;
use super::group::RankGroup;
use super::message::{Loaded, Request};
use super::pass::advance;
use super::remote_state::RemoteState;
use super::worker_pool::WorkerPool;
use crate::cache::{SequenceState, Variant};
use crate::error::Result;
use crate::model::{Batch, Decoder, Footprint, Model, ModelSpec, Pass};

/// A model in pipeline mode.
pub(super) struct PipelineModel {
    spec: ModelSpec,
    divided: Divided,
    local: Decoder,
    /// The layers of each machine, this one first.
    ranges: Vec<Range<usize>>,
    pool: Arc<WorkerPool>,
    group: Arc<RankGroup>,
}

impl PipelineModel {
    /// Creates the model from this machine's layers and workers that are ready.
    pub(super) fn new(
        divided: Divided,
        local: Decoder,
        ranges: Vec<Range<usize>>,
        footprint: Footprint,
        (pool, group): (WorkerPool, Arc<RankGroup>),
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
        Self { spec, divided, local, ranges, pool: Arc::new(pool), group }
    }

    /// Makes the workers run all layers after this machine's. The first of them reads the hidden states, the last one returns them.
    fn advance_there(&self, pass: &mut Pass, states: &mut [&mut SequenceState]) -> Result<()> {
        let (needs_hidden, layers) = (pass.batch().needs_hidden(), self.spec.num_layers);
        let mut request = advance(pass, pass.layer()..layers, needs_hidden, states)?;
        for (place, range) in self.ranges[1..].iter().enumerate() {
            request.layers = range.clone();
            self.pool.send(place, &Request::Advance(request.clone()))?;
        }
        // The workers wait for the rows.
        let rows = self.exchange(pass.hidden(), needs_hidden);
        let rows = rows.map_err(|error| self.pool.failed(error))?;
        pass.move_to(layers, rows);
        RemoteState::record(&self.pool, states)
    }

    /// Sends hidden states to the first worker, and receives those of the last one if they are needed.
    fn exchange(&self, hidden: &Array, needs_hidden: bool) -> Result<Option<Array>> {
        let rows = hidden.as_dtype(self.local.dtype())?;
        // The rows must be on their way before this rank waits for their result.
        async_eval([&self.group.send_on(&rows)?])?;
        let found = needs_hidden.then(|| self.group.receive(rows.shape(), rows.dtype())).transpose()?;
        if let Some(found) = &found {
            async_eval([found])?;
        }
        Ok(found)
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
        let (here, end) = (self.ranges[0].end, pass.layer().saturating_add(layers));
        if pass.layer() < here {
            self.local.advance(pass, end.min(here) - pass.layer(), states)?;
        }
        // A pass stops only within this machine's layers.
        if end > here && pass.layer() < self.spec.num_layers {
            self.advance_there(pass, states)
        } else {
            Ok(())
        }
    }

    fn shift(&self, state: &mut SequenceState, kept: usize, dropped: usize) -> Result<()> {
        self.local.shift(state, kept, dropped)
    }

    fn loses_machines(&self, error: &str) -> bool {
        self.pool.failed(error);
        true
    }

    fn normalized(&self, hidden: &Array) -> Result<Array> {
        self.local.normalized(hidden)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        self.local.logits(hidden)
    }
}
