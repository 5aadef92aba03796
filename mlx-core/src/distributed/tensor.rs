//! Tensor parallelism: each machine has a shard of every layer, and this one also has the embedding and the head. All machines run a pass at
//! the same time and add up their results in the middle of layers. The hidden states before the first layer go from rank to rank.

use std::sync::Arc;

use mlx_rs::Array;

use super::machines::Machines;
use super::message::Request;
use super::pass::advance;
use super::remote_state::RemoteState;
use crate::cache::{SequenceState, Variant};
use crate::error::Result;
use crate::model::{Batch, Decoder, Model, ModelSpec, OtherMachines, Pass};

/// A model in tensor mode.
pub(super) struct TensorModel {
    spec: ModelSpec,
    machines: Arc<Machines>,
    local: Decoder,
    /// The number of the adapter; 0 for none.
    adapter: usize,
}

impl TensorModel {
    /// Creates the model, with an adapter unless `adapter` is 0, from this machine's shard and workers that are ready.
    pub(super) fn new(machines: Arc<Machines>, local: Decoder, adapter: usize) -> Self {
        let spec = machines.spec(&local, adapter, "tensor");
        Self { spec, machines, local, adapter }
    }

    /// Makes all machines run the layers of a pass up to `end`.
    fn advance_all(&self, pass: &mut Pass, end: usize, states: &mut [&mut SequenceState]) -> Result<()> {
        let Machines { pool, group, .. } = &*self.machines;
        let request = Request::Advance(advance(pass, self.adapter, pass.layer()..end, false, states)?);
        for place in 0..pool.count() {
            pool.send(place, &request)?;
        }
        let rows = pass.hidden().as_dtype(self.local.dtype())?;
        pass.move_to(pass.layer(), Some(group.send_on(&rows)?));
        let layers = end - pass.layer();
        // The workers compute exactly these layers, and wait for this machine within them.
        if let Err(error) = self.local.advance(pass, layers, states).and_then(|()| pass.start()) {
            return Err(pool.fail(&error.to_string()));
        }
        RemoteState::record(pool, states)
    }
}

impl Model for TensorModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn new_state(&self, variant: Variant) -> SequenceState {
        self.machines.new_state(&self.local, variant)
    }

    fn begin(&self, batch: Batch) -> Result<Pass> {
        self.local.begin(batch)
    }

    fn advance(&self, pass: &mut Pass, layers: usize, states: &mut [&mut SequenceState]) -> Result<()> {
        let mut end = pass.layer().saturating_add(layers);
        // Once the last layer with a state has run, its state does not show that the pass is unfinished. So the pass runs to the end.
        if end >= self.spec.num_layers || self.machines.divided.states_end_before(end) {
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

    fn other_machines(&self) -> Option<&dyn OtherMachines> {
        Some(&*self.machines.pool)
    }

    fn normalized(&self, hidden: &Array) -> Result<Array> {
        self.local.normalized(hidden)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        self.local.logits(hidden)
    }
}
