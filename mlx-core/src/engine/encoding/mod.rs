//! The engine of an encoder: texts wait, share passes and become vectors or logits. It has no states, caches or draws.

mod capacity;
mod encoder_worker;
mod grouping;
mod pass_time;
mod text;

pub(super) use capacity::EncoderCapacity;
pub(super) use encoder_worker::{EncoderWorker, MAX_RUNNING};
