//! The client and the priority of a request, which decide the order of requests.

use serde::{Deserialize, Serialize};

/// The order in which waiting requests start. Waiting raises a request's rank, so that every request starts at some point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Priority {
    /// Background work.
    Low,
    /// The priority of requests that set none.
    #[default]
    Normal,
    /// Interactive work.
    High,
}

/// The client of a request. Running sequences are shared between clients first, then between the requests of each client. Without
/// [`EngineOptions::share_prefixes`](super::EngineOptions::share_prefixes), clients do not reuse each other's cached data. Programs with
/// one client use the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Client(pub u64);
