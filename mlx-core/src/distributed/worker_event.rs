//! The events of a worker.

use serde::{Deserialize, Serialize};

use super::parallel::Parallel;

/// An event that a worker reports to its program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum WorkerEvent {
    /// A rank 0 was admitted.
    Joined {
        /// Its address.
        from: String,
    },
    /// The weights are being read.
    Loading {
        /// Bytes read so far.
        read: u64,
        /// Bytes to read in total.
        total: u64,
    },
    /// The worker's share is loaded.
    Ready {
        /// This worker's rank.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
        /// The way the model is divided.
        parallel: Parallel,
        /// The first layer and the end of the worker's layers (exclusive).
        layers: [usize; 2],
        /// Bytes of the weights on the device.
        weight_bytes: u64,
    },
    /// Rank 0 left, or was refused after it had joined.
    Left {
        /// The reason.
        reason: String,
    },
    /// A connection was closed because the handshake failed.
    Refused {
        /// The peer's address and the reason.
        reason: String,
    },
}
