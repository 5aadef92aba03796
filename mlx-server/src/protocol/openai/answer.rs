//! The objects of an answer, whole and in chunks.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::logprobs::{ChatLogprobs, CompletionLogprobs};

/// An answer of either endpoint, whole or a chunk of it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Answer<C> {
    /// The answer's id; all its chunks have the same.
    pub(crate) id: String,
    /// What this is.
    pub(crate) object: &'static str,
    /// When the request came, in seconds since 1970.
    pub(crate) created: u64,
    /// The model that answers.
    pub(crate) model: String,
    /// The answers, or their new parts.
    pub(crate) choices: Vec<C>,
    /// The seed of the first answer, given or drawn: sent again, it gives the same tokens.
    pub(crate) seed: u64,
    /// Tokens in and out; in a stream only in the last chunk, and only if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<UsageObject>,
    /// How drafts went, beside `usage`, if there were some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<DraftTimings>,
    /// The prompt's token ids, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    /// With `context_policy`: how many of the oldest messages the model did not see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dropped_messages: Option<usize>,
}

/// A whole answer of `POST /v1/chat/completions`.
pub(crate) type ChatAnswer = Answer<ChatChoice>;
/// A chunk of such an answer.
pub(crate) type ChatChunk = Answer<ChatDeltaChoice>;
/// A whole answer of `POST /v1/completions`, or a chunk of it.
pub(crate) type CompletionAnswer = Answer<CompletionChoice>;

/// A server-sent event of a streamed answer.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "events are written as text; this describes them")]
pub(crate) struct StreamEvent {
    /// A chunk or an error as JSON, or `[DONE]`.
    data: String,
}

/// One of the answers to a chat.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    /// The index of the answer.
    pub(crate) index: usize,
    /// The message of the model.
    pub(crate) message: ChatMessage,
    /// Log-probabilities, if asked for.
    pub(crate) logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub(crate) finish_reason: &'static str,
    /// The ids of all generated tokens, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
}

/// The message of the model.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ChatMessage {
    /// Always `assistant`.
    pub(crate) role: &'static str,
    /// The answer; null if there is nothing but calls.
    pub(crate) content: Option<String>,
    /// The thoughts before it, for models that mark their thoughts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    /// The calls of tools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<CallObject>,
    /// Always null.
    pub(crate) refusal: Option<String>,
}

/// A call of a tool, or its new part.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct CallObject {
    /// In a stream: which call of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) index: Option<usize>,
    /// The id that the result refers to; in a stream only in the first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// Always `function`; in a stream only in the first part.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    /// The tool and its arguments.
    pub(crate) function: CalledFunction,
}

/// The tool of a call, and its arguments.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct CalledFunction {
    /// The name of the tool; in a stream only in the first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The arguments, the text of a JSON object, or more of it.
    pub(crate) arguments: String,
}

/// The new part of one of the answers to a chat.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ChatDeltaChoice {
    /// The index of the answer.
    pub(crate) index: usize,
    /// The new part.
    pub(crate) delta: ChatDelta,
    /// Log-probabilities of the new tokens, if asked for.
    pub(crate) logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls` in the last chunk of this answer.
    pub(crate) finish_reason: Option<&'static str>,
    /// The ids of the new tokens, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
}

/// The new part of a message.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct ChatDelta {
    /// `assistant`, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    /// More of the answer; null in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) content: Option<Value>,
    /// More of the thoughts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    /// More of the calls of tools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<CallObject>,
}

/// One of the continuations, or its new part.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct CompletionChoice {
    /// The index of the continuation; those of the first prompt come first.
    pub(crate) index: usize,
    /// The text, after the prompt's if asked for.
    pub(crate) text: String,
    /// Log-probabilities, if asked for.
    pub(crate) logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`; in a stream only in the last chunk of this continuation.
    pub(crate) finish_reason: Option<&'static str>,
    /// The ids of the new tokens, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
    /// The prompt's token ids, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
}

/// Tokens in and out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct UsageObject {
    /// Tokens of all prompts, each counted once.
    pub(crate) prompt_tokens: usize,
    /// Generated tokens of all answers, including the tokens that ended them.
    pub(crate) completion_tokens: usize,
    /// The sum of both.
    pub(crate) total_tokens: usize,
    /// Details of the prompts' tokens.
    pub(crate) prompt_tokens_details: PromptTokensDetails,
    /// Details of the generated tokens.
    pub(crate) completion_tokens_details: CompletionTokensDetails,
}

/// Details of the generated tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct CompletionTokensDetails {
    /// Tokens of thoughts, with the markers around them.
    pub(crate) reasoning_tokens: usize,
    /// Tokens at the end of an answer that repeat earlier ones in a loop; absent if no answer ended in a loop.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) repeated_tokens: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// How drafts of the next tokens went, as llama-server names it. It depends on what the machine does besides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct DraftTimings {
    /// Tokens of drafts that were verified.
    pub(crate) draft_n: usize,
    /// Those of them that were drawn.
    pub(crate) draft_n_accepted: usize,
}

/// Details of the prompts' tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PromptTokensDetails {
    /// Tokens whose states came from the prefix cache.
    pub(crate) cached_tokens: usize,
}
