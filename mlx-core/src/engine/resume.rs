//! The results of a lost run, after which a request continues.

use serde::{Deserialize, Serialize};

use super::usage::Usage;

/// The results that a lost run of a request delivered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Resume {
    /// The tokens, in order.
    pub tokens: Vec<u32>,
    /// The last known usage of that run. Cached tokens, drafts and the miss are continued; the other counts follow from the tokens.
    pub usage: Usage,
}
