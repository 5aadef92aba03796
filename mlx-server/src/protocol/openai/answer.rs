//! The objects of answers: whole answers and chunks of streams.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::logprobs::{ChatLogprobs, CompletionLogprobs};
use crate::delta::{PrefixMiss, Progress};

/// An answer, or a chunk of one, of chat or text completions.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Answer<C> {
    /// The answer's id. All chunks of an answer have the same id.
    pub(crate) id: String,
    /// The type of the object.
    pub(crate) object: &'static str,
    /// The time of the request, in seconds since 1970.
    pub(crate) created: u64,
    /// The name of the model.
    pub(crate) model: String,
    /// The answers, or their deltas.
    pub(crate) choices: Vec<C>,
    /// The seed of the first answer, given or random. A request with this seed gets the same tokens.
    pub(crate) seed: u64,
    /// Token counts. In a stream only in the last chunk, and only if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<UsageObject>,
    /// Counts of draft tokens, next to `usage`, if any were verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<DraftTimings>,
    /// The progress of the prompt, in chunks before the first token, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_progress: Option<Progress>,
    /// The prompt's token ids, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    /// With `context_policy`: the number of oldest messages that were dropped from the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dropped_messages: Option<usize>,
}

/// The whole answer of `POST /v1/chat/completions`.
pub(crate) type ChatAnswer = Answer<ChatChoice>;
/// A chunk of a chat answer.
pub(crate) type ChatChunk = Answer<ChatDeltaChoice>;
/// The whole answer of `POST /v1/completions`, or a chunk of it.
pub(crate) type CompletionAnswer = Answer<CompletionChoice>;

/// A server-sent event of a streamed answer.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "events are written as text; this describes them")]
pub(crate) struct StreamEvent {
    /// A chunk or an error as JSON, or `[DONE]`.
    data: String,
}

/// One answer to a chat.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    /// The index of the answer.
    pub(crate) index: usize,
    /// The message of the model.
    pub(crate) message: ChatMessage,
    /// Log-probabilities, if requested.
    pub(crate) logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub(crate) finish_reason: &'static str,
    /// The ids of all generated tokens, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
}

/// The message of the model.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ChatMessage {
    /// Always `assistant`.
    pub(crate) role: &'static str,
    /// The text of the answer; null if it has only tool calls.
    pub(crate) content: Option<String>,
    /// The reasoning before the answer, for models that mark their reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    /// The tool calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<CallObject>,
    /// Always null.
    pub(crate) refusal: Option<String>,
}

/// A tool call, or a delta of it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct CallObject {
    /// In a stream: the index of the call in its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) index: Option<usize>,
    /// The id that the result refers to. In a stream only in the first delta.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// Always `function`. In a stream only in the first delta.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    /// The name of the tool, and the arguments.
    pub(crate) function: CalledFunction,
}

/// The name of a called tool, and the arguments.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct CalledFunction {
    /// The name of the tool. In a stream only in the first delta.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The arguments as the text of a JSON object, or a part of that text.
    pub(crate) arguments: String,
}

/// The delta of one answer to a chat.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ChatDeltaChoice {
    /// The index of the answer.
    pub(crate) index: usize,
    /// The delta.
    pub(crate) delta: ChatDelta,
    /// Log-probabilities of the new tokens, if requested.
    pub(crate) logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`, in the last chunk of this answer.
    pub(crate) finish_reason: Option<&'static str>,
    /// The ids of the new tokens, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
}

/// The delta of a message.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct ChatDelta {
    /// `assistant`, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    /// New text; null in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) content: Option<Value>,
    /// New reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    /// Deltas of tool calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<CallObject>,
}

/// One answer to a text completion, or its delta.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct CompletionChoice {
    /// The index of the answer. The answers to the first prompt come first.
    pub(crate) index: usize,
    /// The text, after the prompt if `echo` is set.
    pub(crate) text: String,
    /// Log-probabilities, if requested.
    pub(crate) logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`. In a stream only in the last chunk of this answer.
    pub(crate) finish_reason: Option<&'static str>,
    /// The ids of the new tokens, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
    /// The prompt's token ids, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
}

/// Token counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct UsageObject {
    /// Tokens of all prompts. Each prompt counts once.
    pub(crate) prompt_tokens: usize,
    /// Generated tokens of all answers, including end tokens.
    pub(crate) completion_tokens: usize,
    /// The sum of both.
    pub(crate) total_tokens: usize,
    /// Details of the prompt tokens.
    pub(crate) prompt_tokens_details: PromptTokensDetails,
    /// Details of the generated tokens.
    pub(crate) completion_tokens_details: CompletionTokensDetails,
}

/// Details of the generated tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct CompletionTokensDetails {
    /// Tokens of the reasoning, including its markers.
    pub(crate) reasoning_tokens: usize,
    /// Tokens at the end of an answer that repeat in a loop. Absent if no answer ended in a loop.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) repeated_tokens: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Counts of draft tokens, by llama-server's names. They depend on the load of the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct DraftTimings {
    /// Draft tokens that were verified.
    pub(crate) draft_n: usize,
    /// Draft tokens that were accepted.
    pub(crate) draft_n_accepted: usize,
}

/// Details of the prompt tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PromptTokensDetails {
    /// Tokens reused from the prefix cache.
    pub(crate) cached_tokens: usize,
    /// Tokens of audio, if there are any.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) audio_tokens: usize,
    /// The reason why not more was reused: the prompt differs from the client's cached text here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefix_miss: Option<PrefixMiss>,
}
