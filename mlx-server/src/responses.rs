//! Responses that outlive their request: kept for later requests, followed by clients that come back, written to a journal.

pub(crate) mod events;
pub(crate) mod follow;
pub(crate) mod journal;
pub(crate) mod launch;
pub(crate) mod store;
