//! Running a plan: passes on the device, and the ways back.

mod context_shift;
pub(super) mod device;
pub(super) mod draft_model;
pub(super) mod executor;
mod fingerprint;
mod rollback;
mod row_check;
