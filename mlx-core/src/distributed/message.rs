//! What machines say to each other. Rank 0 asks, a worker answers each question once; numbers are behind the message.

use std::ops::Range;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use super::parallel::Parallel;
use crate::cache::Variant;
use crate::model::Span;
use crate::weights::FloatPolicy;

/// Changes with every change of a message.
pub(super) const PROTOCOL: u32 = 7;

/// The version of the program.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What rank 0 asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Request {
    /// To work together, with a proof of the key.
    Join {
        /// [`PROTOCOL`].
        protocol: u32,
        /// [`VERSION`].
        version: String,
        /// Rank 0's random number.
        nonce: String,
        /// That it has the key.
        proof: String,
        /// The time without a message after which each side counts the other as lost, in milliseconds.
        heartbeat_timeout: u64,
    },
    /// To load some layers.
    Load(Part),
    /// To run layers of a pass. Its hidden states are behind the message.
    Advance(Advance),
    /// To go on in the middle of a layer: the sum of all [`Reply::Partial`] is behind the message.
    Sum,
    /// To change a state.
    Change {
        /// The state.
        id: u64,
        /// How.
        change: StateChange,
        /// States that are not needed any more.
        released: Vec<u64>,
    },
    /// To say that it is there.
    Ping {
        /// States that are not needed any more.
        released: Vec<u64>,
    },
}

/// What a worker is to load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// The number that folders with the same model share, in hexadecimal.
    pub(crate) identity: String,
    /// The worker's rank, from 1, and the number of all.
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// How the model is divided.
    pub(crate) parallel: Parallel,
    /// The layers that it has, or has a part of.
    pub(crate) layers: Range<usize>,
    /// How floats are held and computed in.
    pub(crate) floats: FloatPolicy,
    /// Whether quantized weights stay packed.
    pub(crate) keep_packed: bool,
}

/// What a worker says of the layers that it has loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Loaded {
    /// Bytes of the weights on the device.
    pub(crate) weight_bytes: u64,
    /// Bytes that are left beside them.
    pub(crate) room: u64,
    /// A hash of the weights and of everything that config.json says about them, in hexadecimal.
    pub(crate) fingerprint: String,
}

/// A pass at some layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Advance {
    /// The layers to run, within those of the worker.
    pub(crate) layers: Range<usize>,
    /// The states that the pass extends.
    pub(crate) states: Vec<u64>,
    /// How far the positions of the rows of each state are behind their places.
    pub(crate) position_shifts: Vec<i32>,
    /// The rows of the pass.
    pub(crate) spans: Vec<Span>,
    /// Where each row is in time, height and width; empty where places are positions.
    pub(crate) axes: Vec<[i32; 3]>,
    /// The rows that are of pictures, rising.
    pub(crate) picture_rows: Vec<usize>,
    /// Whether attention goes span by span.
    pub(crate) per_span: bool,
    /// The type and shape of the hidden states, `[T, hidden]`.
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// Whether anything reads them behind these layers.
    pub(crate) needs_hidden: bool,
    /// States that are not needed any more.
    pub(crate) released: Vec<u64>,
}

/// A worker's report of its layers of a state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemoteStateInfo {
    /// The number of positions.
    pub(crate) len: usize,
    /// The shortest length that the layers can be cut to without a checkpoint.
    pub(crate) shortest_cut: usize,
    /// Bytes of device memory, without checkpoints.
    pub(crate) bytes: usize,
    /// Bytes of checkpoints.
    pub(crate) checkpoint_bytes: usize,
    /// Whether the layers are in buffers with those of other sequences.
    pub(crate) is_pooled: bool,
}

/// A change of a state between passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StateChange {
    /// Makes it, empty.
    New {
        /// The variant that it is computed in.
        variant: Variant,
        /// Bits of keys and values, if they are quantized.
        kv_bits: Option<u8>,
    },
    /// Makes it, as the first positions of another one.
    Fork {
        /// The other one.
        from: u64,
        /// The number of positions.
        length: usize,
    },
    /// Goes back to this length, its own or that of a checkpoint.
    Rollback(usize),
    /// Makes it able to return to its present length later.
    Checkpoint {
        /// True if eviction skips the checkpoint.
        marked: bool,
    },
    /// Drops the checkpoint whose loss makes the smallest gap.
    EvictCheckpoint,
    /// Drops all checkpoints.
    DropCheckpoints,
    /// Lets recurrent layers snapshot their state at each row, or drops the snapshots.
    RecordSnapshots(bool),
    /// Removes positions after the first `kept`.
    Shift {
        /// The number of positions that stay in front.
        kept: usize,
        /// The number of positions to remove.
        dropped: usize,
    },
}

/// What a worker answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Reply {
    /// Before anything is asked.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// [`VERSION`].
        version: String,
        /// The worker's random number.
        nonce: String,
    },
    /// To [`Request::Join`].
    Welcome {
        /// That the worker has the key.
        proof: String,
        /// All bytes that it may take.
        budget: u64,
    },
    /// Before [`Reply::Ready`].
    Loading {
        /// Bytes.
        read: u64,
        /// Bytes in all.
        total: u64,
    },
    /// To [`Request::Load`].
    Ready(Loaded),
    /// To [`Request::Advance`], in the middle of a layer: what this worker has of a sum is behind the message.
    Partial,
    /// To [`Request::Advance`]. The hidden states are behind the message, of the same type and shape, if anything reads them.
    Advanced {
        /// The layer that comes next.
        layer: usize,
        /// The states after the pass, in the order of the request.
        states: Vec<RemoteStateInfo>,
    },
    /// To [`Request::Change`].
    Changed(RemoteStateInfo),
    /// To [`Request::Ping`].
    Pong,
    /// The pass failed. Its states are of no use any more.
    Failed {
        /// Why.
        message: String,
    },
    /// The worker does not work with this rank 0 and ends the connection.
    Refused {
        /// Why.
        message: String,
        /// Whether it may help to ask again soon.
        busy: bool,
    },
}

/// The name of a float type as `ModelSpec::dtype` has it; empty for other types.
pub(super) fn dtype_label(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "f32",
        Dtype::F16 => "f16",
        Dtype::BF16 => "bf16",
        _ => "",
    }
}

/// Bytes of a float of a type that hidden states may have.
pub(super) fn float_bytes(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F32 => Some(4),
        Dtype::F16 | Dtype::BF16 => Some(2),
        _ => None,
    }
}
