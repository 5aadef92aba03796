//! The objects of an answer, whole and as events of a stream.

use mlx_core::engine::Usage;
use mlx_json::{Map, Value};
use serde::Serialize;
use utoipa::ToSchema;

/// A message of the model.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct MessageAnswer {
    /// Its id.
    pub(crate) id: String,
    /// Always `message`.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// Always `assistant`.
    pub(crate) role: &'static str,
    /// The model that answers.
    pub(crate) model: String,
    /// What the model thought, said and called, in its order.
    pub(crate) content: Vec<ContentBlock>,
    /// `end_turn`, `max_tokens`, `stop_sequence`, `tool_use` or `model_context_window_exceeded`; null at the beginning of a stream.
    pub(crate) stop_reason: Option<&'static str>,
    /// The text that ended the answer, if one of `stop_sequences` did.
    pub(crate) stop_sequence: Option<String>,
    /// Tokens in and out.
    pub(crate) usage: MessagesUsage,
}

/// A block of a message.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ContentBlock {
    /// A thought.
    Thinking {
        /// Its text; empty with `display: omitted`.
        thinking: String,
        /// Sent back unchanged, it lets the model know the thought again.
        signature: String,
    },
    /// Text.
    Text {
        /// The text.
        text: String,
        /// Always null.
        citations: Option<Vec<Value>>,
    },
    /// A call of a tool.
    ToolUse {
        /// The id that the result refers to.
        id: String,
        /// The name of the tool.
        name: String,
        /// The input. Of a call that did not become a JSON object, it holds the text as `unparsed_arguments`.
        input: Map<String, Value>,
    },
}

/// Tokens in and out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct MessagesUsage {
    /// Tokens of the prompt that were computed. At the beginning of a stream: all of them.
    pub(crate) input_tokens: usize,
    /// Always 0: what is computed is kept without being asked for.
    pub(crate) cache_creation_input_tokens: usize,
    /// Tokens of the prompt whose states came from the prefix cache.
    pub(crate) cache_read_input_tokens: usize,
    /// Generated tokens, including the one that ended the answer.
    pub(crate) output_tokens: usize,
    /// Details of the generated tokens.
    pub(crate) output_tokens_details: OutputTokensDetails,
}

/// Details of the generated tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct OutputTokensDetails {
    /// Tokens of thoughts, with the markers around them.
    pub(crate) thinking_tokens: usize,
}

impl MessagesUsage {
    /// The counts of an answer that has ended.
    pub(super) fn of(usage: &Usage, thinking_tokens: usize) -> Self {
        Self {
            input_tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached_tokens,
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokensDetails { thinking_tokens },
        }
    }
}

/// An event of a streamed answer; its name is its type.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum MessagesEvent {
    /// The first event.
    MessageStart {
        /// The message, without content.
        message: MessageAnswer,
    },
    /// A block begins.
    ContentBlockStart {
        /// The index of the block.
        index: usize,
        /// The block, still empty.
        content_block: ContentBlock,
    },
    /// A block goes on.
    ContentBlockDelta {
        /// The index of the block.
        index: usize,
        /// More of it.
        delta: BlockDelta,
    },
    /// A block has ended.
    ContentBlockStop {
        /// The index of the block.
        index: usize,
    },
    /// The answer has ended.
    MessageDelta {
        /// Why it ended.
        delta: StopDelta,
        /// Tokens in and out.
        usage: MessagesUsage,
    },
    /// The last event.
    MessageStop,
    /// A sign of life.
    Ping,
}

/// More of a block.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type")]
pub(crate) enum BlockDelta {
    /// More text.
    #[serde(rename = "text_delta")]
    Text {
        /// The text.
        text: String,
    },
    /// More of a thought.
    #[serde(rename = "thinking_delta")]
    Thinking {
        /// The text.
        thinking: String,
    },
    /// The signature of a thought.
    #[serde(rename = "signature_delta")]
    Signature {
        /// The signature.
        signature: String,
    },
    /// More of the input of a call.
    #[serde(rename = "input_json_delta")]
    Input {
        /// All of them together are the text of the input.
        partial_json: String,
    },
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct StopDelta {
    /// As in a whole answer.
    pub(crate) stop_reason: Option<&'static str>,
    /// As in a whole answer.
    pub(crate) stop_sequence: Option<String>,
}

/// The length of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct TokenCount {
    /// Its tokens.
    pub(crate) input_tokens: usize,
}

impl MessagesEvent {
    /// Its name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
        }
    }
}
