//! The request that makes workers run layers of a pass.

use std::ops::Range;

use super::message::Advance;
use super::remote_state::RemoteState;
use crate::cache::SequenceState;
use crate::error::Result;
use crate::model::Pass;

/// Builds the request to run these layers with an adapter; 0 for none. Creates missing states on the workers.
pub(super) fn advance(
    pass: &Pass,
    adapter: usize,
    layers: Range<usize>,
    needs_hidden: bool,
    states: &mut [&mut SequenceState],
) -> Result<Advance> {
    let ids = states.iter_mut().map(|state| RemoteState::of(state)?.id());
    Ok(Advance {
        adapter,
        layers,
        states: ids.collect::<Result<_>>()?,
        position_shifts: states.iter().map(|state| state.position_shift()).collect(),
        spans: pass.batch().spans().to_vec(),
        axes: pass.batch().axes().to_vec(),
        picture_rows: pass.batch().picture_rows().to_vec(),
        per_span: pass.batch().is_per_span(),
        rows: pass.hidden().dim(0) as usize,
        needs_hidden,
    })
}
