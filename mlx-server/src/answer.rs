//! Prepared answers and the trait that writes them in the form of a protocol, as one response or as a stream.
//! Invariant: both forms come from the same deltas, so a streamed answer equals a whole one.

use std::sync::Arc;

use bytes::Bytes;
use chat_format::text::Tokenizer;
use mlx_options::Profile;

use crate::delta::{Delta, Progress};
use crate::error::ApiError;
use crate::generation::Choice;

/// The running generations of a request, with the metadata of their answer.
pub(crate) struct Prepared {
    pub(crate) choices: Vec<Choice>,
    /// True if the answer is to be streamed.
    pub(crate) is_streamed: bool,
    pub(crate) meta: AnswerMeta,
}

/// The metadata of an answer, known before its first token.
#[derive(Clone)]
pub(crate) struct AnswerMeta {
    /// The model's name.
    pub(crate) model: String,
    /// The seed of the first choice.
    pub(crate) seed: u64,
    /// The time of the request, in seconds since 1970.
    pub(crate) created: u64,
    /// The expected exactness of the answer, at its start.
    pub(crate) exactness: &'static str,
    /// The profile that the request names.
    pub(crate) profile: Option<Arc<Profile>>,
    /// The number of chat messages dropped from the prompt. `None` with the context policy `stop`.
    pub(crate) dropped: Option<usize>,
    /// The requested limit of generated tokens.
    pub(crate) max_tokens: Option<usize>,
    /// The prompts. Each has the same number of answers.
    pub(crate) prompts: Vec<PromptPart>,
    /// The number of answers per prompt.
    pub(crate) choices: usize,
    pub(crate) tokenizer: Tokenizer,
}

/// A prompt with its tokens and its text to echo.
#[derive(Debug, Clone)]
pub(crate) struct PromptPart {
    /// The tokens of the prompt.
    pub(crate) ids: Vec<u32>,
    /// The prompt's text to echo at the start of its answers. Empty unless the request asked for it.
    pub(crate) echo: String,
}

/// Writes one answer in the form of a protocol. An implementation uses only its own fields and arguments.
pub(crate) trait AnswerWriter: Send + 'static {
    /// The media type of a stream.
    const STREAM_TYPE: &'static str = "text/event-stream";

    /// Returns the first events of a stream.
    fn opening(&mut self) -> Vec<Bytes>;

    /// Returns the events of a delta, or none if the protocol does not report it.
    fn delta(&mut self, delta: Delta) -> Vec<Bytes>;

    /// Returns an event with the progress of a choice's prompt. `None` if the protocol has none.
    fn progress(&mut self, _choice: usize, _progress: Progress) -> Option<Bytes> {
        None
    }

    /// Returns bytes that keep a silent stream alive. The default is an SSE comment, which clients ignore.
    fn keep_alive(&mut self) -> Bytes {
        Bytes::from_static(b": keep-alive\n\n")
    }

    /// Returns the last events of a stream that failed.
    fn failure(&mut self, error: &ApiError) -> Vec<Bytes>;

    /// Returns the last events of a stream.
    fn closing(&mut self) -> Vec<Bytes>;

    /// Returns the whole answer as JSON, from the deltas of each choice.
    fn into_json(self, choices: Vec<Vec<Delta>>) -> Vec<u8>;
}

/// Returns an unnamed server-sent event.
pub(crate) fn event(data: &str) -> Bytes {
    Bytes::from(format!("data: {data}\n\n"))
}
