//! The engine: one thread that owns the model and runs every request of every front end.

mod finish;
mod follower;
mod handle;
mod prompt_score;
mod request;
mod runner;
mod scheduler;
mod sequence;

pub use handle::{Canceller, EngineHandle, Generation};
pub use request::{
    Event, FinishReason, Finished, GenerationRequest, MAX_STOP_STRINGS, PromptToken, RequestOptions, Timings,
    TokenOutput, Usage,
};

/// The level of exactness that results have today: given the same logits, the same draw. See docs/exactness.md.
pub const EXACTNESS: &str = "sampling-exact";
