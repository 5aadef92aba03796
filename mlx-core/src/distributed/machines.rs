//! The machines of a divided model, which the model shares with its versions with adapters.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use super::divided::Divided;
use super::group::RankGroup;
use super::message::Loaded;
use super::remote_state::RemoteState;
use super::worker_pool::WorkerPool;
use crate::cache::{SequenceState, Variant};
use crate::model::{Decoder, Footprint, Model, ModelSpec};

/// The machines of a divided model.
pub(super) struct Machines {
    pub(super) divided: Divided,
    pub(super) pool: Arc<WorkerPool>,
    pub(super) group: Arc<RankGroup>,
    /// The largest footprint of all machines.
    pub(super) footprint: Footprint,
    /// The reports of the workers.
    pub(super) loaded: Vec<Loaded>,
}

impl Machines {
    /// Returns the spec of the model with this number among its versions with adapters; 0 is the model without one. `local` is rank 0's
    /// part of it, and `way` describes the division.
    pub(super) fn spec(&self, local: &Decoder, adapter: usize, way: &str) -> ModelSpec {
        let mut spec = self.divided.spec().clone();
        spec.weight_bytes = local.spec().weight_bytes;
        spec.footprint = self.footprint;
        // A step begun early here would wait on the workers for the previous one.
        spec.first_half = 0;
        spec.remote_capacity = self.loaded.iter().zip(1..).map(|(worker, rank)| (worker.room, rank)).min();
        let parts = self.loaded.iter().filter_map(|worker| worker.fingerprints.get(adapter));
        let parts: Vec<&str> = parts.map(String::as_str).collect();
        let whole = format!("{:032x} {way} {}", local.spec().fingerprint, parts.join(" "));
        spec.fingerprint = xxh3_128(whole.as_bytes());
        spec
    }

    /// Returns an empty state, of which rank 0 holds the layers of `local`.
    pub(super) fn new_state(&self, local: &Decoder, variant: Variant) -> SequenceState {
        let remote = RemoteState::new(Arc::clone(&self.pool), self.divided.kinds(), variant);
        local.new_state(variant).with_store(Box::new(remote))
    }
}
