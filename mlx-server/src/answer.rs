//! An answer on its way to the client: what is known before its first token, and how a protocol writes it, whole or as a
//! stream. Invariant: both come from the same deltas, so a streamed answer and a whole one are equal.

use bytes::Bytes;
use chat_format::text::Tokenizer;

use crate::delta::Delta;
use crate::error::ApiError;
use crate::generation::Choice;

/// Running generations and the metadata of their answer.
pub(crate) struct Prepared {
    /// The generations.
    pub(crate) choices: Vec<Choice>,
    /// Whether the answer is to be streamed.
    pub(crate) is_streamed: bool,
    /// The metadata of the answer.
    pub(crate) meta: AnswerMeta,
}

/// The metadata of an answer, known before its first token.
#[derive(Clone)]
pub(crate) struct AnswerMeta {
    /// The model's name.
    pub(crate) model: String,
    /// The seed of the first choice.
    pub(crate) seed: u64,
    /// When the request came, in seconds since 1970.
    pub(crate) created: u64,
    /// How far the answer can be repeated, as far as is known before it.
    pub(crate) exactness: &'static str,
    /// How many messages of a chat the model does not see, unless the context policy is `stop`.
    pub(crate) dropped: Option<usize>,
    /// The limit of generated tokens that the request gave.
    pub(crate) max_tokens: Option<usize>,
    /// The prompts; each has the same number of answers.
    pub(crate) prompts: Vec<PromptPart>,
    /// The number of answers to each prompt.
    pub(crate) choices: usize,
    /// The model's tokenizer.
    pub(crate) tokenizer: Tokenizer,
}

/// A prompt as a response may show it.
#[derive(Debug, Clone)]
pub(crate) struct PromptPart {
    /// Its tokens.
    pub(crate) ids: Vec<u32>,
    /// The text that its answers begin with; empty unless echoed.
    pub(crate) echo: String,
}

/// Writes one answer in the form of a protocol. An implementation reads nothing but what is handed to it.
pub(crate) trait AnswerWriter: Send + 'static {
    /// The media type of a stream.
    const STREAM_TYPE: &'static str = "text/event-stream";

    /// Returns the first events of a stream.
    fn opening(&mut self) -> Vec<Bytes>;

    /// Returns the events of a delta; none if this client gets nothing from it.
    fn delta(&mut self, delta: Delta) -> Vec<Bytes>;

    /// Returns bytes that keep a silent stream alive. By default a comment: clients ignore it, and proxies keep the connection open.
    fn keep_alive(&mut self) -> Bytes {
        Bytes::from_static(b": keep-alive\n\n")
    }

    /// Returns the last events of a stream that failed.
    fn failure(&mut self, error: &ApiError) -> Vec<Bytes>;

    /// Returns the last events of a stream.
    fn closing(&mut self) -> Vec<Bytes>;

    /// Returns the whole answer as JSON, from the deltas of each choice.
    fn whole(self, choices: Vec<Vec<Delta>>) -> Vec<u8>;
}

/// An event of a stream that has no name.
pub(crate) fn event(data: &str) -> Bytes {
    Bytes::from(format!("data: {data}\n\n"))
}
