//! Context shift: in a text that outgrows the context the first tokens and the latest ones stay, those between them are dropped, and
//! positions continue behind the first ones, so that none is beyond what the model was trained for. Invariant: when it happens depends on
//! the text alone.

use super::device::Device;
use crate::cache::SequenceState;
use crate::error::Result;

impl Device {
    /// Makes room in a full state whose first `keep` positions stay; without `keep` there is always room. The shift is evaluated at once.
    pub(in crate::engine) fn shift_if_full(
        &self,
        state: &mut SequenceState,
        keep: Option<usize>,
    ) -> Result<()> {
        match (keep, self.shapes().to_drop(state.offset(), keep)) {
            (Some(keep), dropped @ 1..) => self.model(0).shift(state, keep, dropped),
            _ => Ok(()),
        }
    }
}
