//! The engine: one thread that owns the model and runs every request of every front end.

mod finish;
mod follower;
mod handle;
mod options;
mod prompt_score;
mod request;
mod runner;
mod scheduler;
mod sequence;
mod stats;

pub use handle::{Canceller, EngineHandle, Generation};
pub use options::{EngineOptions, Exactness, Priority};
pub use request::{
    Event, FinishReason, Finished, GenerationRequest, MAX_STOP_STRINGS, PromptToken, RequestOptions, Timings,
    TokenOutput, Usage,
};
pub use stats::EngineStats;
