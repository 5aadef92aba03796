//! Constraints on generated text: what a request may demand, the grammars that enforce it, and the followers of sequences.
//! Invariant: what a constraint forbids is never drawn; a failure ends its sequence.

mod compiled;
mod follower;
mod formats;
mod frame;
mod lark;
mod matcher;
mod place;
mod references;
mod schema;
mod shared;
mod source;
mod spec;
mod target;
mod triggered;
mod triggers;
mod vocabulary;

pub(super) use compiled::Compiled;
pub(super) use follower::follower;
pub use frame::Marker;
pub(crate) use frame::{Preamble, Thoughts};
pub(super) use matcher::MATCHER_BYTES;
pub use shared::Grammars;
pub(super) use shared::check;
pub use spec::{ConstraintSpec, Grammar, Scope};
pub(super) use target::Target;
