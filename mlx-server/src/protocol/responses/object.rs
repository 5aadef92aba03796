//! The objects of the Responses API as the server writes them. Every field that may be null is written.

use mlx_json::{Map, Value};
use serde::Serialize;
use utoipa::ToSchema;

use crate::protocol::openai::logprobs::ChatLogprob;

/// A response, at the beginning or the end of its computation.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = ResponseObject)]
pub(crate) struct Response {
    /// Its id.
    pub(crate) id: String,
    /// Always `response`.
    pub(crate) object: &'static str,
    /// When the request came, in seconds since 1970.
    pub(crate) created_at: u64,
    /// When the answer ended.
    pub(crate) completed_at: Option<u64>,
    /// `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`.
    pub(crate) status: Status,
    /// Always false.
    pub(crate) background: bool,
    /// Why it failed.
    pub(crate) error: Option<ResponseError>,
    /// Why it is incomplete.
    pub(crate) incomplete_details: Option<IncompleteDetails>,
    /// What the model answered.
    #[schema(value_type = Vec<Object>)]
    pub(crate) output: Vec<OutputItem>,
    /// Tokens in and out; null until it has ended.
    pub(crate) usage: Option<ResponseUsage>,
    /// The model that answers.
    pub(crate) model: String,
    /// The seed, given or drawn: sent again, it gives the same tokens.
    pub(crate) seed: u64,
    /// What the request said.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub(crate) request: Map<String, Value>,
}

/// How far a response or an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// It is being computed.
    InProgress,
    /// It is complete.
    Completed,
    /// A limit cut it.
    Incomplete,
    /// It failed.
    Failed,
    /// The client cancelled it, or left.
    Cancelled,
}

/// Why a response failed.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ResponseError {
    /// A name for programs.
    pub(crate) code: &'static str,
    /// What went wrong.
    pub(crate) message: String,
}

/// Why a response is incomplete.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct IncompleteDetails {
    /// Always `max_output_tokens`: the limit or the end of the context was reached.
    pub(crate) reason: &'static str,
}

/// Tokens in and out.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct ResponseUsage {
    /// Tokens of the prompt.
    pub(crate) input_tokens: usize,
    /// Details of these.
    pub(crate) input_tokens_details: InputTokensDetails,
    /// Generated tokens.
    pub(crate) output_tokens: usize,
    /// Details of these.
    pub(crate) output_tokens_details: OutputTokensDetails,
    /// The sum of both.
    pub(crate) total_tokens: usize,
}

/// Details of a prompt's tokens.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct InputTokensDetails {
    /// Tokens whose states came from the prefix cache.
    pub(crate) cached_tokens: usize,
}

/// Details of generated tokens.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct OutputTokensDetails {
    /// Tokens of thoughts.
    pub(crate) reasoning_tokens: usize,
}

/// A part of the answer.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem {
    /// What the model thought.
    Reasoning {
        id: String,
        summary: Vec<Value>,
        content: Vec<OutputPart>,
        encrypted_content: Option<String>,
        status: Status,
    },
    /// What it said.
    Message { id: String, status: Status, role: &'static str, content: Vec<OutputPart> },
    /// A call of a function.
    FunctionCall {
        id: String,
        status: Status,
        arguments: String,
        call_id: String,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
    },
    /// A call of a custom tool.
    CustomToolCall {
        id: String,
        status: Status,
        call_id: String,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        input: String,
    },
}

/// A part of a message or of thoughts.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputPart {
    /// Text of an answer.
    OutputText { annotations: Vec<Value>, logprobs: Vec<ChatLogprob>, text: String },
    /// Text of a thought.
    ReasoningText { text: String },
}

impl OutputPart {
    /// A part of an answer.
    pub(crate) fn text(text: String, logprobs: Vec<ChatLogprob>) -> Self {
        Self::OutputText { annotations: Vec::new(), logprobs, text }
    }
}
