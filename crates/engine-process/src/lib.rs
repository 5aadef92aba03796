//! Runs an engine in a child process of the same program. A sequence is its tokens, so after the death of the child its requests continue in
//! a new one, and their clients see a pause. `docs/decisions/0058-engines-in-child-processes.md` has the reasons.
#![forbid(unsafe_code)]

mod call;
mod child;
mod connection;
mod counters;
mod deadline;
mod death;
mod fault;
mod frame;
mod front;
mod group_file;
mod memory;
mod message;
mod outbox;
mod parent;
mod pause;
mod program;
mod progress;
mod sequence;
mod shared;
mod state;
mod submission;
mod supervisor;
mod wire_error;

pub use child::run;
pub use deadline::DEADLINE;
pub use fault::FAULT_FILE;
pub use front::start;
pub use group_file::GroupFile;
pub use parent::{end, end_with_parent};
pub use program::Program;
