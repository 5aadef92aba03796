//! The engine: one thread that owns the model and runs every request of every front end.

mod capacity;
mod chunks;
mod decode;
mod device;
mod embedding;
mod fill;
mod fingerprint;
mod finish;
mod follower;
mod handle;
mod ledger;
mod options;
mod pace;
mod prefixes;
mod prompt_score;
mod request;
mod rewind;
mod room;
mod row_check;
mod runner;
mod running;
mod saved;
mod scheduler;
mod sequence;
mod share;
#[cfg(test)]
mod simulation;
mod slide;
mod stats;

pub use embedding::Pooling;
pub use handle::{Canceller, EngineHandle, Generation};
pub use options::{EngineOptions, Exactness, Priority};
pub use prefixes::PrefixMiss;
pub use request::{
    Event, FinishReason, Finished, GenerationRequest, MAX_STOP_STRINGS, PromptToken, RequestOptions, Timings,
    TokenOutput, Usage,
};
pub use room::Room;
pub use running::FolderStamp;
pub use stats::EngineStats;
