//! What an engine has done and is doing, as numbers for people and monitoring.

/// A snapshot; counters only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Requests that wait for their turn.
    pub waiting: usize,
    /// Requests that are being worked on.
    pub running: usize,
    /// Requests that have ended, however they did.
    pub finished: u64,
    /// Prompt tokens that were computed.
    pub prompt_tokens: u64,
    /// Prompt tokens that were taken from a cache.
    pub cached_tokens: u64,
    /// Tokens that were drawn.
    pub completion_tokens: u64,
    /// Times a running request was put back to make room.
    pub preemptions: u64,
    /// Bytes that weights, caches and work may take.
    pub budget_bytes: u64,
    /// Bytes promised to requests that run, the weights included.
    pub reserved_bytes: u64,
    /// Bytes of cache that running requests hold, the weights included.
    pub used_bytes: u64,
}
