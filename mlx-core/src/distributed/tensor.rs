//! Tensor parallelism: each machine has a shard of every layer, and this one also has the embedding and the head. All machines run a pass at
//! the same time and add up their results in the middle of layers. The hidden states before the first layer go from rank to rank.

use std::sync::Arc;

use mlx_rs::Array;
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

/// A model in tensor mode.
pub(super) struct TensorModel {
    spec: ModelSpec,
    divided: Divided,
    local: Decoder,
    pool: Arc<WorkerPool>,
    group: Arc<RankGroup>,
}

impl TensorModel {
    /// Creates the model from this machine's shard and workers that are ready.
    pub(super) fn new(
        divided: Divided,
        local: Decoder,
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
        let whole = format!("{:032x} tensor {}", local.spec().fingerprint, parts.join(" "));
        spec.fingerprint = xxh3_128(whole.as_bytes());
        Self { spec, divided, local, pool: Arc::new(pool), group }
    }

    /// Makes all machines run the layers of a pass up to `end`.
    fn advance_all(&self, pass: &mut Pass, end: usize, states: &mut [&mut SequenceState]) -> Result<()> {
        let request = Request::Advance(advance(pass, pass.layer()..end, false, states)?);
        for place in 0..self.pool.count() {
            self.pool.send(place, &request)?;
        }
        let rows = pass.hidden().as_dtype(self.local.dtype())?;
        pass.move_to(pass.layer(), Some(self.group.send_on(&rows)?));
        let layers = end - pass.layer();
        // The workers compute exactly these layers, and wait for this machine within them.
        if let Err(error) = self.local.advance(pass, layers, states).and_then(|()| pass.start()) {
            return Err(self.pool.failed(error));
        }
        RemoteState::record(&self.pool, states)
    }
}

impl Model for TensorModel {
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
        let mut end = pass.layer().saturating_add(layers);
        // Once the last layer with a state has run, its state does not show that the pass is unfinished. So the pass runs to the end.
        if end >= self.spec.num_layers || self.divided.states_end_before(end) {
            end = self.spec.num_layers;
        }
        while pass.layer() < end {
            // Only rank 0 adds features of pictures.
            let next = if pass.next_layer_adds_features() { pass.layer() + 1 } else { end };
            self.advance_all(pass, next, states)?;
        }
        Ok(())
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
