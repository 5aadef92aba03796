//! Running a plan: passes on the device, and the ways back.

pub(super) mod ahead;
mod borders;
mod context_shift;
pub(super) mod decode_pass;
pub(super) mod device;
pub(super) mod divided;
pub(super) mod draft_model;
pub(super) mod executor;
mod fingerprint;
mod guess;
mod prefill_chunk;
mod rollback;
pub(super) mod room;
pub(super) mod row_check;
pub(super) mod which_drafts;
