//! Tensor parallelism: each machine has a shard of every layer, and this one also has the embedding and the head. All machines run a pass at
//! the same time and add up their results in the middle of layers.

use std::sync::{Arc, OnceLock};

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
use crate::weights::AllReduce;

/// A model in tensor mode.
pub(super) struct TensorModel {
    spec: ModelSpec,
    divided: Divided,
    local: Decoder,
    pool: Arc<WorkerPool>,
}

/// Rank 0's side of the sums in the middle of layers where this process can join no group in MLX. It is empty until the workers are ready.
#[derive(Default)]
pub(super) struct PoolAllReduce(OnceLock<Arc<WorkerPool>>);

impl AllReduce for PoolAllReduce {
    fn sum(&self, part: &Array) -> Result<Array> {
        let pool = self.0.get().ok_or_else(|| Error::Distributed("the workers are not ready".into()))?;
        let shape: Vec<usize> = part.shape().iter().map(|&size| size as usize).collect();
        let (dtype, bytes) = array::to_bytes(part)?;
        array::of_file(&pool.sum(dtype, bytes)?, dtype, &shape)
    }
}

impl TensorModel {
    /// Creates the model from this machine's shard, its all-reduce, and workers that are ready.
    pub(super) fn new(
        divided: Divided,
        (local, sums): (Decoder, &PoolAllReduce),
        footprint: Footprint,
        pool: WorkerPool,
        loaded: &[Loaded],
    ) -> Self {
        let pool = Arc::new(pool);
        sums.0.set(Arc::clone(&pool)).ok();
        let mut spec = divided.spec().clone();
        spec.weight_bytes = local.spec().weight_bytes;
        spec.footprint = footprint;
        // A step begun early here would wait on the workers for the previous one.
        spec.first_half = 0;
        spec.remote_capacity = loaded.iter().zip(1..).map(|(worker, rank)| (worker.room, rank)).min();
        let parts: Vec<&str> = loaded.iter().map(|worker| worker.fingerprint.as_str()).collect();
        let whole = format!("{:032x} tensor {}", local.spec().fingerprint, parts.join(" "));
        spec.fingerprint = xxh3_128(whole.as_bytes());
        Self { spec, divided, local, pool }
    }

    /// Makes all machines run the layers of a pass up to `end`.
    fn advance_all(&self, pass: &mut Pass, end: usize, states: &mut [&mut SequenceState]) -> Result<()> {
        let (mut request, rows) = advance(pass, pass.layer()..end, false, states)?;
        for place in 0..self.pool.count() {
            request.released = self.pool.take_released(place);
            self.pool.send(place, &Request::Advance(request.clone()), &rows)?;
        }
        let layers = end - pass.layer();
        // The workers evaluate exactly these layers, and wait for this machine within them.
        if let Err(error) = self.local.advance(pass, layers, states).and_then(|()| pass.start()) {
            // The workers are waiting for a sum that will not come.
            let message = format!("rank 0 could not compute its shard: {error}");
            return Err(if self.pool.outage().is_some() { error } else { self.pool.mark_lost(message) });
        }
        for place in 0..self.pool.count() {
            match self.pool.receive(place)?.0 {
                Reply::Advanced { layer, states: infos }
                    if layer == pass.layer() && infos.len() == states.len() =>
                {
                    for (state, info) in states.iter_mut().zip(infos) {
                        RemoteState::of(state)?.record(place, info);
                    }
                }
                Reply::Failed { message } => return Err(self.pool.mark_failed(place, &message)),
                _ => return Err(self.pool.malformed(place)),
            }
        }
        Ok(())
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
