//! Messages between rank 0 and its workers. A worker sends one reply to each request of rank 0, none to a release, and two to a pass.
//! Tensors travel through the ranks' group in MLX.

use std::ops::Range;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::group_backend::GroupBackend;
use super::group_start::GroupStart;
use super::parallel::Parallel;
use super::saved_layers::SavedArray;
use crate::cache::{SavedLayers, SavedPart, Variant};
use crate::model::Span;
use crate::weights::FloatPolicy;

/// The protocol version. It changes whenever a message changes.
pub(super) const PROTOCOL: u32 = 15;

/// The version of the program.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A request of rank 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Request {
    /// Joins the worker, with a proof of the shared key.
    Join {
        /// [`PROTOCOL`].
        protocol: u32,
        /// [`VERSION`].
        version: String,
        /// The worker's rank, from 1.
        rank: usize,
        /// Rank 0's nonce.
        nonce: String,
        /// Rank 0's proof that it has the key.
        proof: String,
        /// The time without a message after which each side counts the other as lost, in milliseconds.
        heartbeat_timeout: u64,
        /// The group that this worker's process will join.
        group: GroupStart,
    },
    /// Loads the worker's share of the model.
    Load(LoadRequest),
    /// Runs layers of a pass. The previous rank sends their hidden states.
    Advance(Advance),
    /// Changes a state.
    Change {
        /// The number of the state.
        id: u64,
        /// The change.
        change: StateCommand,
    },
    /// Releases a state. There is no reply.
    Release {
        /// The number of the state.
        id: u64,
    },
    /// Sends a part of a state to rank 0, which saves it.
    Export {
        /// The number of the state.
        id: u64,
        /// The part.
        part: SavedPart,
    },
    /// Adds a saved part, the payload, to a state.
    Import {
        /// The number of the state.
        id: u64,
        /// The part.
        part: SavedPart,
        /// The arrays of each layer.
        layers: Vec<Vec<SavedArray>>,
    },
    /// Sends the payload back, to measure the link.
    Echo,
    /// Joins the group and takes part in its measurement.
    Measure(MeasureRequest),
}

/// A message from a peer.
pub(super) trait Message: DeserializeOwned + Send + 'static {
    /// The reason why the peer closes the connection after this message, if it does.
    fn refusal(&self) -> Option<&str>;
}

impl Message for Request {
    fn refusal(&self) -> Option<&str> {
        None
    }
}

/// A worker's share of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LoadRequest {
    /// The number that folders with the same model share, in hexadecimal.
    pub(crate) identity: String,
    /// The numbers that folders with the same adapter share, in hexadecimal, in rank 0's order.
    pub(crate) adapters: Vec<String>,
    /// The worker's rank, from 1, and the number of ranks.
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// The way the model is divided.
    pub(crate) parallel: Parallel,
    /// The layers that the worker loads, whole or as a shard.
    pub(crate) layers: Range<usize>,
    /// The types that floats are stored and computed in.
    pub(crate) floats: FloatPolicy,
    /// True if quantized weights stay packed.
    pub(crate) keep_packed: bool,
    /// The backend of the ranks' group.
    pub(crate) backend: GroupBackend,
    /// The text of MLX's file that describes the group; empty if the backend reads none.
    pub(crate) group_file: String,
}

/// A measurement of the ranks' group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MeasureRequest {
    /// The worker's rank, from 1, and the number of ranks.
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// The backend of the group.
    pub(crate) backend: GroupBackend,
    /// The text of MLX's file that describes the group; empty if the backend reads none.
    pub(crate) group_file: String,
}

/// A worker's report after loading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Loaded {
    /// Bytes of the weights on the device.
    pub(crate) weight_bytes: u64,
    /// Bytes of the budget that remain for states and passes.
    pub(crate) room: u64,
    /// The number of layers of a state in each saved part.
    pub(crate) saved_layers: SavedLayers,
    /// Hashes of the weights and their settings in config.json, in hexadecimal: without an adapter, then with each of them.
    pub(crate) fingerprints: Vec<String>,
}

/// A request to run layers of a pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Advance {
    /// The number of the adapter; 0 for none.
    pub(crate) adapter: usize,
    /// The layers to run; all belong to the worker.
    pub(crate) layers: Range<usize>,
    /// The states that the pass extends.
    pub(crate) states: Vec<u64>,
    /// For each state, its row index minus its position.
    pub(crate) position_shifts: Vec<i32>,
    /// The rows of the pass.
    pub(crate) spans: Vec<Span>,
    /// The time, height and width positions of each row. Empty if positions are row indices.
    pub(crate) axes: Vec<[i32; 3]>,
    /// The rows of pictures, in ascending order.
    pub(crate) picture_rows: Vec<usize>,
    /// True if attention runs per span.
    pub(crate) per_span: bool,
    /// The number of rows, with padding.
    pub(crate) rows: usize,
    /// True if rank 0 reads the hidden states after the last layer.
    pub(crate) needs_hidden: bool,
}

/// A worker's report of its layers of a state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemoteStateInfo {
    /// The number of positions in the state.
    pub(crate) len: usize,
    /// The shortest length that the layers can be truncated to without a checkpoint.
    pub(crate) shortest_cut: usize,
    /// Bytes of device memory, without checkpoints.
    pub(crate) bytes: usize,
    /// Bytes of checkpoints.
    pub(crate) checkpoint_bytes: usize,
    /// True if the layers share buffers with other sequences.
    pub(crate) is_pooled: bool,
}

/// A change of a state between passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StateCommand {
    /// Creates an empty state.
    New {
        /// The variant of its positions.
        variant: Variant,
        /// Bits per key and value, if they are quantized.
        kv_bits: Option<u8>,
    },
    /// Creates a state from the first positions of another one.
    Fork {
        /// The number of the other state.
        from: u64,
        /// The number of positions.
        length: usize,
    },
    /// Truncates the state to this length: its current one or that of a checkpoint.
    Rollback(usize),
    /// Takes a checkpoint at the current length.
    Checkpoint {
        /// True if eviction skips the checkpoint.
        marked: bool,
    },
    /// Drops one checkpoint, so that the remaining gap is as small as possible.
    EvictCheckpoint,
    /// Drops all checkpoints.
    DropCheckpoints,
    /// Starts or stops recording a snapshot of recurrent layers at each row; stopping drops the snapshots.
    RecordSnapshots(bool),
    /// Removes positions after the first `kept`.
    Shift {
        /// The number of leading positions that stay.
        kept: usize,
        /// The number of positions to remove.
        dropped: usize,
    },
}

/// A worker's reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Reply {
    /// Opens the handshake, before any request.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// [`VERSION`].
        version: String,
        /// The worker's nonce.
        nonce: String,
    },
    /// The reply to [`Request::Join`].
    Welcome {
        /// The worker's proof that it has the key.
        proof: String,
        /// The worker's memory budget in bytes.
        budget: u64,
        /// A free address of the worker for the ranks' group in MLX, `IP:PORT`, if it has an IPv4 address.
        group_address: Option<String>,
    },
    /// The reply to [`Request::Echo`], with its payload.
    Echo,
    /// The reply to [`Request::Measure`], after the last exchange.
    Measured,
    /// Loading progress, sent before [`Reply::Ready`].
    Loading {
        /// Bytes read so far.
        read: u64,
        /// Bytes to read in total.
        total: u64,
    },
    /// The reply to [`Request::Load`].
    Ready(Loaded),
    /// The reply to [`Request::Advance`], as soon as the layers are issued.
    Advanced {
        /// The states after the pass, in the order of the request.
        states: Vec<RemoteStateInfo>,
        /// The peak bytes of arrays up to the previous pass.
        peak: u64,
    },
    /// Follows [`Reply::Advanced`] when the layers are computed without an error.
    Computed,
    /// The reply to [`Request::Change`].
    Changed(RemoteStateInfo),
    /// The reply to [`Request::Export`], with the layers as its payload.
    Exported {
        /// The arrays of each layer. `None` if they no longer have exact values or are too large.
        layers: Option<Vec<Vec<SavedArray>>>,
    },
    /// The reply to [`Request::Import`]: the state, or the reason that the part does not fit it.
    Imported(Result<RemoteStateInfo, String>),
    /// The worker rejects this rank 0, or cannot continue, and closes the connection.
    Refused {
        /// The reason.
        message: String,
        /// True if a later attempt may succeed.
        busy: bool,
    },
}

impl Message for Reply {
    fn refusal(&self) -> Option<&str> {
        match self {
            Self::Refused { message, .. } => Some(message),
            _ => None,
        }
    }
}
