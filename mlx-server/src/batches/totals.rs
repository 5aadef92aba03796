//! Totals of the results of a batch: lines and tokens.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// The number of results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Lines that were answered.
    pub(crate) completed: u64,
    /// Lines with an error.
    pub(crate) failed: u64,
}

/// The tokens of the answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Usage {
    /// Tokens of prompts.
    pub(crate) input_tokens: u64,
    /// Details of the prompts.
    pub(crate) input_tokens_details: InputDetails,
    /// Generated tokens.
    pub(crate) output_tokens: u64,
    /// Details of the answers.
    pub(crate) output_tokens_details: OutputDetails,
    /// All tokens.
    pub(crate) total_tokens: u64,
}

/// Details of the tokens of prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct InputDetails {
    /// Tokens that were reused from a cache.
    pub(crate) cached_tokens: u64,
}

/// Details of generated tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct OutputDetails {
    /// Tokens of thoughts.
    pub(crate) reasoning_tokens: u64,
}

impl Usage {
    /// Adds the usage of a response, in the form of any endpoint.
    pub(super) fn add(&mut self, usage: &Value) {
        let get = |names: [&str; 2]| names.iter().find_map(|name| usage.pointer(name)?.as_u64()).unwrap_or(0);
        let input = get(["/prompt_tokens", "/input_tokens"]);
        let output = get(["/completion_tokens", "/output_tokens"]);
        self.input_tokens += input;
        self.output_tokens += output;
        self.total_tokens += input + output;
        self.input_tokens_details.cached_tokens +=
            get(["/prompt_tokens_details/cached_tokens", "/input_tokens_details/cached_tokens"]);
        self.output_tokens_details.reasoning_tokens +=
            get(["/completion_tokens_details/reasoning_tokens", "/output_tokens_details/reasoning_tokens"]);
    }
}
