//! The engine: one thread that owns the model and runs every request of every front end.

mod canceller;
mod checkpoint_plan;
mod constraint;
mod engine_loop;
mod event;
mod generation;
mod handle;
mod memory_fit;
mod options;
mod output;
mod pictures;
mod prefix;
mod registry;
mod request;
mod run;
mod schedule;
mod sequence;
mod speculate;
mod stats;
mod usage;

pub use canceller::Canceller;
pub use constraint::{ConstraintSpec, Grammar, Grammars, Marker, Scope};
pub(crate) use constraint::{Preamble, Thoughts};
pub use event::{Event, FinishReason, Finished, PromptToken, TokenOutput};
pub use generation::{EventStream, Generation};
pub use handle::Engine;
pub use memory_fit::MemoryFit;
pub use options::{Client, EngineOptions, Exactness, Pipeline, Priority};
pub use prefix::PrefixMiss;
pub use registry::{Engines, FolderStamp};
pub use request::{GenerationRequest, MAX_STOP_STRINGS, RequestOptions, Task};
pub use run::row_check::{StepWidth, step_widths};
pub use speculate::{CustomDrafter, DraftCounts, Drafter, Speculate};
pub use stats::EngineStats;
pub use usage::{Miss, Timings, Usage};
