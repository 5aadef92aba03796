//! The messages between a server and the child that runs an engine.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use mlx_core::engine::{
    EngineOptions, EngineStats, Event, Exactness, PrefixMiss, RemoteFacts, RequestOptions, Resume, Usage,
};
use serde::{Deserialize, Serialize};

use crate::wire_error::WireError;

/// The version of the program. It is sent before the first message, in a frame of its own, since other versions may have other messages.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The error if the program's file is gone or has another version.
pub(crate) const REPLACED: &str = "the program was replaced while the server ran; restart the server";

/// A message to the child. The first one is `Start`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToChild<'a> {
    /// Load this model.
    Start { folder: PathBuf, options: Box<EngineOptions> },
    /// Check a request.
    Check { call: u64, request: Box<Request<'a>> },
    /// Check on the device how exact requests are that do not set `exact`.
    Exactness { call: u64, adapter: usize },
    /// Return the last prefix miss.
    LastMiss { call: u64 },
    /// Run sequences of one request. If `is_resumed`, they ran or waited in an earlier child, and the queue's limit does not apply.
    Submit { call: u64, is_resumed: bool, requests: Vec<Request<'a>>, sequences: Vec<Sequence<'a>> },
    /// Cancel a sequence.
    Cancel { id: u64 },
    /// Save the disk cache, and end.
    Stop,
}

/// A request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Request<'a> {
    /// The number of the adapter, from 1; 0 for none.
    pub(crate) adapter: usize,
    pub(crate) prompt: Cow<'a, [u32]>,
    pub(crate) options: Cow<'a, RequestOptions>,
}

/// A sequence of a request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sequence<'a> {
    /// The index of the request in its message.
    pub(crate) request: usize,
    /// The number that identifies the sequence.
    pub(crate) id: u64,
    pub(crate) seed: u64,
    /// The results of earlier children.
    pub(crate) resume: Option<Cow<'a, Resume>>,
}

/// The properties of a checked request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Checked {
    pub(crate) seed: u64,
    pub(crate) exactness: Exactness,
}

/// A message from the child.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromChild {
    /// Some bytes of the model were read.
    Loading { read: u64, total: u64 },
    /// The model is loaded.
    Ready(Box<RemoteFacts>),
    /// The model cannot be loaded. The child ends.
    Failed(WireError),
    /// The answer to a call.
    Reply { call: u64, reply: Result<Reply, WireError> },
    /// A sequence has started.
    Started { id: u64 },
    /// The usage of a sequence before its next token, if it has changed.
    Usage { id: u64, usage: Usage },
    /// An event of a sequence.
    Event { id: u64, event: Event },
    /// A machine that holds a part of the model was lost. Later messages of this child do not count.
    LostMachine(String),
    /// A sequence was lost without an end.
    Lost { id: u64 },
    /// A step begins, or else the engine has nothing to do.
    Step { is_step: bool, expected: Option<Duration>, stats: EngineStats },
    /// The counters and gauges after a request was queued.
    Stats(EngineStats),
}

/// The answer to a call.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Checked(Checked),
    Exactness(Exactness),
    LastMiss(Option<PrefixMiss>),
    Submitted,
}
