//! The stored state of a batch.

use mlx_core::engine::Client;
use mlx_json::{Map, Value};
use serde::{Deserialize, Serialize};

use super::totals::{Counts, Usage};
use crate::client;
use crate::files::new_id;
use crate::ids::random_id;
use crate::time;

/// The only completion window, and its length in seconds.
pub(crate) const WINDOW: (&str, u64) = ("24h", 24 * 60 * 60);

/// The state of a batch.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BatchRecord {
    pub(crate) id: String,
    /// The owner.
    #[serde(with = "client::stored")]
    pub(crate) client: Option<Client>,
    /// The path that all lines call.
    pub(crate) endpoint: String,
    /// The id of the file with the requests.
    pub(crate) input: String,
    /// The ids of the files with answers and with errors, chosen before the first line runs.
    pub(crate) results: [String; 2],
    /// The metadata of the request.
    pub(crate) metadata: Option<Map<String, Value>>,
    pub(crate) created: u64,
    /// The time at which remaining lines expire.
    pub(crate) expires: u64,
    pub(crate) status: Status,
    /// The time of each status, in the order of [`Status::ALL`].
    pub(crate) times: [Option<u64>; Status::ALL.len()],
    /// The number of lines, once they are counted.
    pub(crate) total: u64,
    /// The results so far.
    pub(crate) counts: Counts,
    pub(crate) usage: Usage,
    /// True for each of `results` that has lines. False until the batch has ended.
    pub(crate) has_results: [bool; 2],
    /// The reason that the whole batch failed.
    pub(crate) failure: Option<Failure>,
}

/// The reason that a batch failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) code: String,
    pub(crate) message: String,
}

/// The status of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Validating,
    InProgress,
    Finalizing,
    Cancelling,
    Completed,
    Failed,
    Expired,
    Cancelled,
}

impl Status {
    /// All statuses.
    pub(crate) const ALL: [Self; 8] = [
        Self::Validating,
        Self::InProgress,
        Self::Finalizing,
        Self::Cancelling,
        Self::Completed,
        Self::Failed,
        Self::Expired,
        Self::Cancelled,
    ];

    /// Returns OpenAI's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::InProgress => "in_progress",
            Self::Finalizing => "finalizing",
            Self::Cancelling => "cancelling",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns true if nothing changes any more.
    pub(crate) fn has_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Expired | Self::Cancelled)
    }
}

impl BatchRecord {
    /// Returns a new batch.
    pub(crate) fn new(
        client: Client,
        endpoint: String,
        input: String,
        metadata: Option<Map<String, Value>>,
    ) -> Self {
        let created = time::now();
        Self {
            id: format!("batch_{}", random_id()),
            client: Some(client),
            endpoint,
            input,
            results: [new_id(), new_id()],
            metadata,
            created,
            expires: created + WINDOW.1,
            status: Status::Validating,
            times: [None; Status::ALL.len()],
            total: 0,
            counts: Counts::default(),
            usage: Usage::default(),
            has_results: [false; 2],
            failure: None,
        }
    }

    /// Sets the status and its time. A batch that is cancelled only ends.
    pub(crate) fn enter(&mut self, status: Status) {
        if self.status == status || self.status == Status::Cancelling && !status.has_ended() {
            return;
        }
        self.status = status;
        self.times[status as usize] = Some(time::now());
    }

    /// Returns the time at which the batch had a status first.
    pub(crate) fn time_of(&self, status: Status) -> Option<u64> {
        self.times[status as usize]
    }

    /// Returns the ids of the result files.
    pub(super) fn result_ids(&self) -> impl Iterator<Item = &str> {
        self.results.iter().map(String::as_str)
    }
}
