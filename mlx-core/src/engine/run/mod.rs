//! Runs plans: the passes on the device, and rollbacks.

mod checkpoint;
mod chunk_boundaries;
mod context_shift;
pub(super) mod decode_pass;
pub(super) mod device;
pub(super) mod divided;
pub(super) mod executor;
mod fingerprint;
mod guess;
mod lookahead;
pub(super) mod memory_budget;
pub(super) mod prefill_chunk;
mod rollback;
pub(super) mod row_check;
pub(super) mod runner;
