//! Constraints on generated text: checks of requests, the grammars that enforce them, and the followers of sequences. Invariant: a
//! forbidden token is never drawn; a failure ends its sequence.

mod compiled;
mod follower;
mod formats;
mod lark;
mod matcher;
mod place;
mod references;
mod schema;
mod shared;
mod source;
mod spec;
mod target;
mod thought_limit;
mod triggered;
mod triggers;
mod vocabulary;

pub(super) use compiled::Compiled;
pub(super) use follower::follower;
pub(super) use matcher::MATCHER_BYTES;
pub use shared::Grammars;
pub(super) use shared::check;
pub(super) use spec::check_form;
pub(super) use target::Target;
pub(super) use thought_limit::{ThoughtLimit, thought_limit};
