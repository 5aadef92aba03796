//! The engine: one thread that owns the model and runs every request of every front end.

mod capacity;
mod chunks;
mod context_shift;
mod decode;
mod device;
mod disk_prefix;
mod embedding;
mod fingerprint;
mod finish;
mod handle;
mod ledger;
mod memory_fit;
mod options;
mod output_text;
mod prefill;
mod prefill_budget;
mod prefix_sharing;
mod prefix_store;
mod prompt_score;
mod registry;
mod request;
mod rewind;
mod row_check;
mod runner;
mod scheduler;
mod sequence;
#[cfg(test)]
mod simulation;
mod stats;

pub use embedding::Pooling;
pub use handle::{Canceller, EngineHandle, Generation};
pub use memory_fit::MemoryFit;
pub use options::{EngineOptions, Exactness, Priority};
pub use prefix_store::PrefixMiss;
pub use registry::FolderStamp;
pub use request::{
    Event, FinishReason, Finished, GenerationRequest, MAX_STOP_STRINGS, PromptToken, RequestOptions, Timings,
    TokenOutput, Usage,
};
pub use stats::EngineStats;
