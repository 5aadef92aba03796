//! The connection of an admitted rank 0, on its way to the thread or process that works for it.

use std::net::TcpStream;
use std::time::Duration;

use super::group_start::GroupStart;

/// A rank 0 that has the version and the key.
#[derive(Debug)]
pub struct Admitted {
    /// The connection. The worker's next message is its answer to a request.
    pub stream: TcpStream,
    /// The address of rank 0.
    pub from: String,
    /// This worker's rank.
    pub rank: usize,
    /// The time without a message after which each side counts the other as lost.
    pub heartbeat_timeout: Duration,
    /// The group that the process will join.
    pub group: GroupStart,
}
