//! Context shift: in a text that outgrows the context the first tokens and the latest ones stay, those between them are dropped, and
//! positions continue behind the first ones, so that none is beyond what the model was trained for. Invariant: when it happens depends on
//! the text alone.

use super::device::Device;
use crate::cache::SequenceState;
use crate::error::Result;

impl Device {
    /// Makes room in a full state whose first `n_keep` positions stay; without `n_keep` there is always room. The shift is evaluated at once.
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
