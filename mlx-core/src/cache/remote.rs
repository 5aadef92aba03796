//! The layers of a sequence's state, or the parts of them, that other machines hold: a number that they know them by, and what they said of them last.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::variant::Variant;
use crate::error::Result;

/// What one machine says of its layers of a state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayersView {
    /// The number of positions.
    pub(crate) len: usize,
    /// The shortest length that they can be cut to without a checkpoint.
    pub(crate) shortest_cut: usize,
    /// Bytes of device memory, without checkpoints.
    pub(crate) bytes: usize,
    /// Bytes of checkpoints.
    pub(crate) checkpoint_bytes: usize,
    /// Whether they are in buffers with those of other sequences.
    pub(crate) is_pooled: bool,
}

/// What is done to a state between passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StateChange {
    /// It is made, empty.
    New {
        /// The variant that it is computed in.
        variant: Variant,
        /// Bits of keys and values, if they are quantized.
        kv_bits: Option<u8>,
    },
    /// It is made, as the first positions of another one.
    Fork {
        /// The other one.
        from: u64,
        /// How many positions.
        length: usize,
    },
    /// It goes back to this length, its own or that of a checkpoint.
    Rollback(usize),
    /// It can return to its present length later.
    Checkpoint {
        /// Whether the checkpoint stays where others are thinned.
        marked: bool,
    },
    /// The checkpoint that is missed the least is dropped.
    Thin,
    /// All checkpoints are dropped.
    DropCheckpoints,
    /// From now on it keeps what recurrent layers replace, or not.
    Trace(bool),
    /// Positions behind the first `kept` are removed.
    Shift {
        /// How many stay in front.
        kept: usize,
        /// How many go.
        dropped: usize,
    },
}

/// The machines that hold layers of states.
pub(crate) trait Holders: Send + Sync {
    /// A number that no state had.
    fn next_id(&self) -> u64;

    /// Changes a state on all machines, and says what it is like on each, in the order of their layers. After an error they hold no
    /// states any more, and every later pass fails.
    fn change(&self, id: u64, change: StateChange) -> Result<Vec<LayersView>>;

    /// A state is not needed any more.
    fn release(&self, id: u64);
}

/// What is true of some layers of a model, wherever they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerKinds {
    /// Whether some cannot be cut anywhere.
    pub(crate) need_checkpoints: bool,
    /// Whether some are recurrent.
    pub(crate) are_recurrent: bool,
}

/// The layers of one state that other machines hold.
pub(crate) struct RemoteLayers {
    holders: Arc<dyn Holders>,
    id: u64,
    variant: Variant,
    kv_bits: Option<u8>,
    kinds: LayerKinds,
    /// Of each machine, in the order of layers; empty until they know the state.
    views: Vec<LayersView>,
}

impl RemoteLayers {
    /// Empty ones of a model with layers of these kinds.
    pub(crate) fn new(holders: Arc<dyn Holders>, kinds: LayerKinds, variant: Variant) -> Self {
        let id = holders.next_id();
        Self { holders, id, variant, kv_bits: None, kinds, views: Vec::new() }
    }

    /// What the machines know the state by; makes it there if they do not.
    pub(crate) fn id(&mut self) -> Result<u64> {
        if self.views.is_empty() {
            let new = StateChange::New { variant: self.variant, kv_bits: self.kv_bits };
            self.views = self.holders.change(self.id, new)?;
        }
        Ok(self.id)
    }

    /// What the machine at this place says of it after a pass.
    pub(crate) fn record(&mut self, place: usize, view: LayersView) {
        self.views[place] = view;
    }

    /// Keeps keys and values of an empty state in so many bits.
    pub(super) fn quantize(&mut self, bits: u8) {
        self.kv_bits = Some(bits);
    }

    /// The number of positions that all layers have.
    pub(super) fn len(&self) -> usize {
        self.views.last().map_or(0, |view| view.len)
    }

    pub(super) fn shortest_cut(&self) -> usize {
        self.views.iter().map(|view| view.shortest_cut).max().unwrap_or(0)
    }

    /// Bytes on the machine that has the most.
    pub(super) fn bytes(&self) -> usize {
        self.views.iter().map(|view| view.bytes).max().unwrap_or(0)
    }

    /// The same of checkpoints.
    pub(super) fn checkpoint_bytes(&self) -> usize {
        self.views.iter().map(|view| view.checkpoint_bytes).max().unwrap_or(0)
    }

    /// Whether some layer of the model, wherever it is, cannot be cut anywhere.
    pub(super) fn needs_checkpoints(&self) -> bool {
        self.kinds.need_checkpoints
    }

    pub(super) fn is_recurrent(&self) -> bool {
        self.kinds.are_recurrent
    }

    pub(super) fn is_pooled(&self) -> bool {
        self.views.iter().any(|view| view.is_pooled)
    }

    /// Changes them, if there are any yet.
    pub(super) fn change(&mut self, change: StateChange) -> Result<()> {
        if !self.views.is_empty() {
            self.views = self.holders.change(self.id, change)?;
        }
        Ok(())
    }

    /// The same where an error has no reader. The next pass meets it again.
    pub(super) fn change_or_log(&mut self, change: StateChange) {
        if let Err(error) = self.change(change) {
            tracing::debug!(%error, ?change, "a state on other machines was not changed");
        }
    }

    /// The first `length` positions as layers of another state.
    pub(super) fn fork(&self, length: usize) -> Result<Self> {
        let id = self.holders.next_id();
        let views = if self.views.is_empty() {
            Vec::new()
        } else {
            self.holders.change(id, StateChange::Fork { from: self.id, length })?
        };
        Ok(Self { holders: Arc::clone(&self.holders), id, views, ..*self })
    }
}

impl Drop for RemoteLayers {
    fn drop(&mut self) {
        if !self.views.is_empty() {
            self.holders.release(self.id);
        }
    }
}
