//! An engine in another process, as the handle sees it. The program provides the connection.

use std::fmt;
use std::sync::Arc;

use super::canceller::Canceller;
use super::event::Event;
use super::miss::PrefixMiss;
use super::options::Exactness;
use super::request::RequestOptions;
use super::stats::EngineStats;
use crate::error::{Error, Result};
use crate::model::ModelSpec;
use crate::processor::NoTowers;
use serde::{Deserialize, Serialize};

/// An engine in another process. Dropping it ends the engine.
pub trait RemoteEngine: Send + Sync {
    /// Returns true if the engine runs requests, and false once it has ended for good.
    fn is_ready(&self) -> bool;

    /// Returns the reason why no request can run now.
    fn outage(&self) -> Option<Outage>;

    /// Returns the counters and gauges.
    fn stats(&self) -> EngineStats;

    /// Returns the first difference between the last prompt and the cached prefix most similar to it.
    fn last_miss(&self) -> Option<PrefixMiss>;

    /// Returns the exactness of requests through an adapter that do not set `exact`.
    fn exactness(&self, adapter: usize) -> Result<Exactness>;

    /// Checks a request. Blocks until the other process has answered.
    fn check(&self, adapter: usize, prompt: Vec<u32>, options: &RequestOptions) -> Result<RemoteRequest>;

    /// Submits the sequences of one request. Either all of them are queued or, on error, none.
    fn submit(&self, sequences: Vec<RemoteSequence>) -> Result<()>;
}

/// The reason why no request can run now. The engine keeps trying to recover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outage {
    /// A machine that holds a part of the model is away. The message names it.
    Machine(String),
    /// The process of the engine has died and is started again.
    Process(String),
}

impl fmt::Display for Outage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Machine(message) | Self::Process(message)) = self;
        formatter.write_str(message)
    }
}

/// The model of an engine in another process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RemoteFacts {
    /// The specs without an adapter, then with each adapter.
    pub specs: Vec<ModelSpec>,
    /// The exactness of requests that are not exact.
    pub exactness: Exactness,
    /// The reasons why towers of the model cannot be used.
    pub no_towers: NoTowers,
}

impl RemoteFacts {
    /// Returns the reason why sequences of an engine with these facts cannot continue in a `later` one, if there is one.
    pub fn difference(&self, later: &Self) -> Option<Error> {
        let capacity = |facts: &Self| facts.specs.first().and_then(|spec| spec.remote_capacity);
        let Some((before, now)) = capacity(self).zip(capacity(later)) else {
            let changed = "the files of the model have changed, so its requests cannot continue";
            return (self != later).then(|| Error::EngineStopped(changed.into()));
        };
        let ((room, _), (later_room, rank)) = (before, now);
        if later_room < room {
            let message = format!("rank {rank} has less memory than before; restart this program");
            return Some(Error::Distributed(message));
        }
        let mut same = later.clone();
        same.specs.iter_mut().for_each(|spec| spec.remote_capacity = Some(before));
        let changed = "the machines of the model have other weights than before; restart this program";
        (*self != same).then(|| Error::Distributed(changed.into()))
    }
}

/// A request that an engine in another process has checked.
#[derive(Debug, Clone)]
pub struct RemoteRequest {
    /// The number of the adapter among the engine's adapters, from 1; 0 for none.
    pub adapter: usize,
    /// The tokens of the prompt.
    pub prompt: Arc<Vec<u32>>,
    /// The options.
    pub options: Arc<RequestOptions>,
    /// The seed of the draws.
    pub seed: u64,
    /// The expected exactness of the result.
    pub exactness: Exactness,
}

/// A sequence of a checked request, and the receiver of its events.
pub struct RemoteSequence {
    /// The request.
    pub request: RemoteRequest,
    /// The receiver of its events, which may be dropped to cancel it.
    pub events: async_channel::Sender<Event>,
    /// The flag that cancels it.
    pub canceller: Canceller,
}
