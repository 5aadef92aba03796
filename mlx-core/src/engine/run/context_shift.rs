//! Context shift: when a text outgrows the context, the first and the latest tokens stay and those between them are dropped. Positions then
//! continue after the first tokens, so that none exceeds the trained context. Invariant: when this happens depends only on the text.

use super::device::Device;
use crate::cache::SequenceState;
use crate::error::Result;

impl Device {
    /// Drops positions from a full state, except its first `n_keep`. Does nothing if `n_keep` is `None` or the state is not full. The shift
    /// is evaluated at once.
    pub(in crate::engine) fn shift_if_full(
        &self,
        state: &mut SequenceState,
        n_keep: Option<usize>,
    ) -> Result<()> {
        match (n_keep, self.shapes().to_drop(state.offset(), n_keep)) {
            (Some(n_keep), dropped @ 1..) => self.model(0).shift(state, n_keep, dropped),
            _ => Ok(()),
        }
    }
}
