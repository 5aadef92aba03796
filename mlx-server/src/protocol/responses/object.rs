//! The objects of the Responses API that the server writes. Fields that are null are written too.

use mlx_json::{Map, Value};
use serde::Serialize;
use utoipa::ToSchema;

use crate::delta::PrefixMiss;
use crate::protocol::openai::logprobs::ChatLogprob;

/// A response, in progress or finished.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = ResponseObject)]
pub(crate) struct Response {
    /// The response's id.
    pub(crate) id: String,
    /// Always `response`.
    pub(crate) object: &'static str,
    /// The time of the request, in seconds since 1970.
    pub(crate) created_at: u64,
    /// The time of the end, in seconds since 1970.
    pub(crate) completed_at: Option<u64>,
    /// `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`.
    pub(crate) status: Status,
    /// Always false.
    pub(crate) background: bool,
    /// The error, if the response failed.
    pub(crate) error: Option<ResponseError>,
    /// The reason that the response is incomplete.
    pub(crate) incomplete_details: Option<IncompleteDetails>,
    /// The output of the model.
    #[schema(value_type = Vec<Object>)]
    pub(crate) output: Vec<OutputItem>,
    /// Token counts; null until the response has ended.
    pub(crate) usage: Option<ResponseUsage>,
    /// The name of the model.
    pub(crate) model: String,
    /// The seed, given or random. A request with this seed gets the same tokens.
    pub(crate) seed: u64,
    /// Fields of the request.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub(crate) request: Map<String, Value>,
}

/// The status of a response or an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// The computation is in progress.
    InProgress,
    /// The computation is complete.
    Completed,
    /// A limit ended the computation.
    Incomplete,
    /// The computation failed.
    Failed,
    /// The client cancelled the response or disconnected.
    Cancelled,
}

/// The error of a failed response.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ResponseError {
    /// The error code.
    pub(crate) code: &'static str,
    /// The error message.
    pub(crate) message: String,
}

/// Details of an incomplete response.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct IncompleteDetails {
    /// Always `max_output_tokens`: the token limit or the end of the context was reached.
    pub(crate) reason: &'static str,
}

/// Token counts.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct ResponseUsage {
    /// Prompt tokens.
    pub(crate) input_tokens: usize,
    /// Details of the prompt tokens.
    pub(crate) input_tokens_details: InputTokensDetails,
    /// Generated tokens.
    pub(crate) output_tokens: usize,
    /// Details of the generated tokens.
    pub(crate) output_tokens_details: OutputTokensDetails,
    /// The sum of both.
    pub(crate) total_tokens: usize,
}

/// Details of the prompt tokens.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct InputTokensDetails {
    /// Tokens reused from the prefix cache.
    pub(crate) cached_tokens: usize,
    /// The reason why not more was reused: the prompt differs from the client's cached text here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefix_miss: Option<PrefixMiss>,
}

/// Details of the generated tokens.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct OutputTokensDetails {
    /// Tokens of the reasoning.
    pub(crate) reasoning_tokens: usize,
}

/// An item of the output.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem {
    /// Reasoning.
    Reasoning {
        id: String,
        summary: Vec<Value>,
        content: Vec<OutputPart>,
        encrypted_content: Option<String>,
        status: Status,
    },
    /// A message.
    Message { id: String, status: Status, role: &'static str, content: Vec<OutputPart> },
    /// A function call.
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
    /// The tools of an MCP server.
    McpListTools { id: String, server_label: String, tools: Vec<Value>, error: Option<String> },
    /// A call of a tool of an MCP server, which this server runs.
    McpCall {
        id: String,
        status: CallStatus,
        server_label: String,
        name: String,
        arguments: String,
        output: Option<String>,
        /// The parts of an output with pictures.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        output_parts: Vec<Value>,
        error: Option<Value>,
        approval_request_id: Option<String>,
    },
    /// A call of such a tool that needs the client's approval.
    McpApprovalRequest { id: String, server_label: String, name: String, arguments: String },
}

/// The status of a call of an MCP server's tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CallStatus {
    /// The model generates the arguments.
    InProgress,
    /// The call runs.
    Calling,
    /// The call has an output.
    Completed,
    /// A limit cut the arguments.
    Incomplete,
    /// The call or the tool failed.
    Failed,
}

/// A part of a message or of reasoning.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputPart {
    /// Text of a message.
    OutputText { annotations: Vec<Value>, logprobs: Vec<ChatLogprob>, text: String },
    /// Text of reasoning.
    ReasoningText { text: String },
}

impl OutputPart {
    /// Returns a text part of a message.
    pub(crate) fn text(text: String, logprobs: Vec<ChatLogprob>) -> Self {
        Self::OutputText { annotations: Vec::new(), logprobs, text }
    }
}
