//! The engine: one thread that owns the model and runs every request of every front end.

mod canceller;
mod capacity;
mod chunks;
mod constraint;
mod context_shift;
mod device;
mod embedding;
mod engine_loop;
mod executor;
mod fingerprint;
mod generation;
mod handle;
mod memory_fit;
mod options;
mod output;
mod prefix;
mod prompt_score;
mod registry;
mod request;
mod rollback;
mod row_check;
mod schedule;
mod sequence;
mod stats;

pub use canceller::Canceller;
pub use constraint::ConstraintSpec;
pub use embedding::Pooling;
pub use generation::{EventStream, Generation};
pub use handle::Engine;
pub use memory_fit::MemoryFit;
pub use options::{EngineOptions, Exactness, Priority};
pub use prefix::PrefixMiss;
pub use registry::{Engines, FolderStamp};
pub use request::{
    Event, FinishReason, Finished, GenerationRequest, MAX_STOP_STRINGS, PromptToken, RequestOptions, Task,
    Timings, TokenOutput, Usage,
};
pub use stats::EngineStats;
