//! The objects of an answer, for whole messages and for events of a stream.

use mlx_core::engine::Usage;
use mlx_json::{Map, Value};
use serde::Serialize;
use utoipa::ToSchema;

use crate::delta::{PrefixMiss, Progress};

/// A message of the model.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct MessageAnswer {
    /// The message's id.
    pub(crate) id: String,
    /// Always `message`.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// Always `assistant`.
    pub(crate) role: &'static str,
    /// The name of the model.
    pub(crate) model: String,
    /// The thinking, text and tool calls of the model, in order.
    pub(crate) content: Vec<ContentBlock>,
    /// `end_turn`, `max_tokens`, `stop_sequence`, `tool_use` or `model_context_window_exceeded`; null at the start of a stream.
    pub(crate) stop_reason: Option<&'static str>,
    /// The text of `stop_sequences` that ended the answer, if one did.
    pub(crate) stop_sequence: Option<String>,
    /// Token counts.
    pub(crate) usage: MessagesUsage,
}

/// A block of a message.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ContentBlock {
    /// Thinking.
    Thinking {
        /// The text; empty with `display: omitted`.
        thinking: String,
        /// An opaque signature. Send it back unchanged, so that the model gets its thinking again.
        signature: String,
    },
    /// Text.
    Text {
        /// The text.
        text: String,
        /// Always null.
        citations: Option<Vec<Value>>,
    },
    /// A tool call.
    ToolUse {
        /// The id that the result refers to.
        id: String,
        /// The name of the tool.
        name: String,
        /// The input. If the arguments are not a JSON object, it has their text as `unparsed_arguments`.
        input: Map<String, Value>,
    },
}

/// Token counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct MessagesUsage {
    /// Computed prompt tokens. At the start of a stream: all prompt tokens.
    pub(crate) input_tokens: usize,
    /// Always 0: caching is automatic.
    pub(crate) cache_creation_input_tokens: usize,
    /// Prompt tokens reused from the prefix cache.
    pub(crate) cache_read_input_tokens: usize,
    /// The reason why not more was reused: the prompt differs from the client's cached text here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefix_miss: Option<PrefixMiss>,
    /// Generated tokens, including the end token.
    pub(crate) output_tokens: usize,
    /// Details of the generated tokens.
    pub(crate) output_tokens_details: OutputTokensDetails,
}

/// Details of the generated tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct OutputTokensDetails {
    /// Tokens of the thinking, including its markers.
    pub(crate) thinking_tokens: usize,
}

impl MessagesUsage {
    /// Returns the counts of a finished answer.
    pub(super) fn new(usage: &Usage, thinking_tokens: usize) -> Self {
        Self {
            input_tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached_tokens,
            prefix_miss: usage.miss.map(Into::into),
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokensDetails { thinking_tokens },
        }
    }
}

/// An event of a streamed answer. Its name is its type.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum MessagesEvent {
    /// The first event.
    MessageStart {
        /// The message, without content.
        message: MessageAnswer,
    },
    /// The start of a block.
    ContentBlockStart {
        /// The index of the block.
        index: usize,
        /// The block, still empty.
        content_block: ContentBlock,
    },
    /// A delta of a block.
    ContentBlockDelta {
        /// The index of the block.
        index: usize,
        /// The delta.
        delta: BlockDelta,
    },
    /// The end of a block.
    ContentBlockStop {
        /// The index of the block.
        index: usize,
    },
    /// The end of the answer.
    MessageDelta {
        /// The stop reason.
        delta: StopDelta,
        /// Token counts.
        usage: MessagesUsage,
    },
    /// The last event.
    MessageStop,
    /// A keep-alive event.
    Ping {
        /// The progress of a long prompt.
        #[serde(skip_serializing_if = "Option::is_none")]
        prompt_progress: Option<Progress>,
    },
}

/// A delta of a block.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type")]
pub(crate) enum BlockDelta {
    /// New text.
    #[serde(rename = "text_delta")]
    Text {
        /// The text.
        text: String,
    },
    /// New thinking.
    #[serde(rename = "thinking_delta")]
    Thinking {
        /// The text.
        thinking: String,
    },
    /// The signature of the thinking.
    #[serde(rename = "signature_delta")]
    Signature {
        /// The signature.
        signature: String,
    },
    /// New input of a tool call.
    #[serde(rename = "input_json_delta")]
    Input {
        /// A part of the input's JSON text. Concatenate all parts to get the text.
        partial_json: String,
    },
}

/// The reason that an answer ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct StopDelta {
    /// As in a whole message.
    pub(crate) stop_reason: Option<&'static str>,
    /// As in a whole message.
    pub(crate) stop_sequence: Option<String>,
}

/// The length of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct TokenCount {
    /// The number of tokens.
    pub(crate) input_tokens: usize,
}

impl MessagesEvent {
    /// Returns the event's name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping { .. } => "ping",
        }
    }
}
