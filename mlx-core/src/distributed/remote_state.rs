//! The layers of a sequence's state, or shards of them, that workers hold. Rank 0 stores their number and the last report of each worker.

use std::any::Any;
use std::sync::Arc;

use super::message::{RemoteStateInfo, StateCommand};
use super::worker_pool::WorkerPool;
use crate::cache::{SavedLayer, SavedPart, SequenceState, StateStore, StoreInfo, Variant};
use crate::error::{Error, Result};

/// Properties of all layers of a model, on any machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct LayerKinds {
    /// True if some layers can be truncated only to checkpoints.
    pub(super) need_checkpoints: bool,
    /// True if some layers are recurrent.
    pub(super) are_recurrent: bool,
}

/// The layers of one state that workers hold.
pub(super) struct RemoteState {
    pool: Arc<WorkerPool>,
    id: u64,
    variant: Variant,
    kv_bits: Option<u8>,
    kinds: LayerKinds,
    /// The reports of the workers, in the order of their layers; empty until they have created the state.
    infos: Vec<RemoteStateInfo>,
}

impl RemoteState {
    /// Creates an empty state. The workers create their layers at the first pass.
    pub(super) fn new(pool: Arc<WorkerPool>, kinds: LayerKinds, variant: Variant) -> Self {
        let id = pool.next_id();
        Self { pool, id, variant, kv_bits: None, kinds, infos: Vec::new() }
    }

    /// Returns the workers' layers of a state.
    pub(super) fn of(state: &mut SequenceState) -> Result<&mut Self> {
        let store = state.store_mut().and_then(|store| store.as_any_mut().downcast_mut());
        store.ok_or_else(|| Error::Distributed("a state has no layers on other machines".into()))
    }

    /// Returns the number of the state on the workers, and creates it there first if needed.
    pub(super) fn id(&mut self) -> Result<u64> {
        if self.infos.is_empty() {
            let new = StateCommand::New { variant: self.variant, kv_bits: self.kv_bits };
            self.infos = self.pool.change(self.id, new)?;
        }
        Ok(self.id)
    }

    /// Receives and records the reports of all workers about the states of a pass.
    pub(super) fn record(pool: &WorkerPool, states: &mut [&mut SequenceState]) -> Result<()> {
        for place in 0..pool.count() {
            for (state, info) in pool.report(place, states.len())?.into_iter().enumerate() {
                Self::of(states[state])?.infos[place] = info;
            }
        }
        Ok(())
    }

    /// Changes the state on the workers, if they have created it.
    fn change(&mut self, change: StateCommand) -> Result<()> {
        if !self.infos.is_empty() {
            self.infos = self.pool.change(self.id, change)?;
        }
        Ok(())
    }

    /// Like [`change`](Self::change), but logs the error. The next pass will report it.
    fn change_or_log(&mut self, change: StateCommand) {
        if let Err(error) = self.change(change) {
            tracing::debug!(%error, ?change, "cannot change a state on other machines");
        }
    }

    fn largest(&self, of: fn(&RemoteStateInfo) -> usize) -> usize {
        self.infos.iter().map(of).max().unwrap_or(0)
    }
}

impl StateStore for RemoteState {
    /// Reports the bytes of the machine with the largest state.
    fn info(&self) -> StoreInfo {
        StoreInfo {
            positions: self.infos.last().map_or(0, |info| info.len),
            min_truncate_length: self.largest(|info| info.shortest_cut),
            bytes: self.largest(|info| info.bytes),
            checkpoint_bytes: self.largest(|info| info.checkpoint_bytes),
            is_pooled: self.infos.iter().any(|info| info.is_pooled),
            needs_checkpoints: self.kinds.need_checkpoints,
            is_recurrent: self.kinds.are_recurrent,
        }
    }

    fn quantize(&mut self, bits: u8) {
        self.kv_bits = Some(bits);
    }

    fn shift(&mut self, kept: usize, dropped: usize) -> Result<()> {
        self.change(StateCommand::Shift { kept, dropped })
    }

    fn checkpoint(&mut self, marked: bool) -> Result<()> {
        self.change(StateCommand::Checkpoint { marked })
    }

    fn rollback(&mut self, length: usize) {
        self.change_or_log(StateCommand::Rollback(length));
    }

    fn evict_checkpoint(&mut self) {
        self.change_or_log(StateCommand::EvictCheckpoint);
    }

    fn drop_checkpoints(&mut self) {
        if self.kinds.need_checkpoints {
            self.change_or_log(StateCommand::DropCheckpoints);
        }
    }

    fn record_snapshots(&mut self, on: bool) {
        if self.kinds.are_recurrent {
            self.change_or_log(StateCommand::RecordSnapshots(on));
        }
    }

    fn fork(&self, length: usize) -> Result<Box<dyn StateStore>> {
        let id = self.pool.next_id();
        let infos = if self.infos.is_empty() {
            Vec::new()
        } else {
            self.pool.change(id, StateCommand::Fork { from: self.id, length })?
        };
        Ok(Box::new(Self { pool: Arc::clone(&self.pool), id, infos, ..*self }))
    }

    fn export(&self, part: &SavedPart) -> Result<Option<Vec<Vec<SavedLayer>>>> {
        self.pool.export(self.id, part)
    }

    fn import(&mut self, part: &SavedPart, layers: &[&[SavedLayer]]) -> Result<()> {
        let id = self.id()?;
        for (place, info) in self.pool.import(id, part, layers)? {
            self.infos[place] = info;
        }
        Ok(())
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Drop for RemoteState {
    fn drop(&mut self) {
        if !self.infos.is_empty() {
            self.pool.release(self.id);
        }
    }
}
