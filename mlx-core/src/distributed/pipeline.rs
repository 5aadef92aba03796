//! Pipeline parallelism: this machine has the embedding, the first layers and the head; each worker has some of the later layers. A pass runs
//! through the machines one after the other, around the ring.

use std::ops::Range;
use std::sync::Arc;

use mlx_rs::Array;
use mlx_rs::transforms::async_eval;

use super::machines::Machines;
use super::message::Request;
use super::pass::advance;
use super::remote_state::RemoteState;
use crate::cache::{SequenceState, Variant};
use crate::error::Result;
use crate::model::{Batch, Decoder, Model, ModelSpec, OtherMachines, Pass};

/// A model in pipeline mode.
pub(super) struct PipelineModel {
    spec: ModelSpec,
    machines: Arc<Machines>,
    local: Decoder,
    /// The number of the adapter; 0 for none.
    adapter: usize,
    /// The layers of each machine, this one first.
    ranges: Vec<Range<usize>>,
}

impl PipelineModel {
    /// Creates the model, with an adapter unless `adapter` is 0, from this machine's layers and workers that are ready.
    pub(super) fn new(
        machines: Arc<Machines>,
        (local, adapter): (Decoder, usize),
        ranges: Vec<Range<usize>>,
    ) -> Self {
        let spec = machines.spec(&local, adapter, &format!("{ranges:?}"));
        Self { spec, machines, local, adapter, ranges }
    }

    /// Makes the workers run all layers after this machine's. The first of them reads the hidden states, the last one returns them.
    fn advance_there(&self, pass: &mut Pass, states: &mut [&mut SequenceState]) -> Result<()> {
        let (needs_hidden, layers) = (pass.batch().needs_hidden(), self.spec.num_layers);
        let pool = &self.machines.pool;
        let mut request = advance(pass, self.adapter, pass.layer()..layers, needs_hidden, states)?;
        for (place, range) in self.ranges[1..].iter().enumerate() {
            request.layers = range.clone();
            pool.send(place, &Request::Advance(request.clone()))?;
        }
        // The workers wait for the rows.
        let rows = self.exchange(pass.hidden(), needs_hidden);
        let rows = rows.map_err(|error| pool.fail(&error.to_string()))?;
        pass.move_to(layers, rows);
        RemoteState::record(pool, states)
    }

    /// Sends hidden states to the first worker, and receives those of the last one if they are needed.
    fn exchange(&self, hidden: &Array, needs_hidden: bool) -> Result<Option<Array>> {
        let rows = hidden.as_dtype(self.local.dtype())?;
        // The rows must be on their way before this rank waits for their result.
        let group = &self.machines.group;
        async_eval([&group.send_on(&rows)?])?;
        let found = needs_hidden.then(|| group.receive(rows.shape(), rows.dtype())).transpose()?;
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
        self.machines.new_state(&self.local, variant)
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
