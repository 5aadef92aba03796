//! Log-probabilities in the two formats of OpenAI's API.

use chat_format::text::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::offsets::TextOffsets;
use crate::delta::Token;

/// The value that OpenAI sends for minus infinity, which JSON lacks.
const MIN_LOGPROB: f32 = -9999.0;

/// The log-probabilities of a chat answer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ChatLogprobs {
    /// All generated tokens, including reasoning and the end token.
    pub(crate) content: Vec<ChatLogprob>,
    /// Always null.
    pub(crate) refusal: Option<Vec<ChatLogprob>>,
}

/// A token of a chat answer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ChatLogprob {
    /// The token and its log-probability.
    #[serde(flatten)]
    pub(crate) chosen: Alternative,
    /// The most likely tokens at this position.
    pub(crate) top_logprobs: Vec<Alternative>,
}

/// A token and its log-probability.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Alternative {
    /// The token's text. Bytes that are not a whole character are replaced.
    pub(crate) token: String,
    /// The log-probability.
    pub(crate) logprob: f32,
    /// The token's bytes.
    pub(crate) bytes: Vec<u8>,
}

impl ChatLogprobs {
    /// Returns the log-probabilities of these tokens.
    pub(crate) fn new(tokens: &[Token], tokenizer: &Tokenizer) -> Self {
        let alternative = |id: u32, logprob: f32| {
            let bytes = tokenizer.token_bytes(id);
            let token = String::from_utf8_lossy(&bytes).into_owned();
            Alternative { token, logprob: logprob.max(MIN_LOGPROB), bytes }
        };
        let with_logprob = tokens.iter().filter_map(|token| Some((token.id, token.logprob.as_ref()?)));
        let content = with_logprob
            .map(|(id, logprob)| ChatLogprob {
                chosen: alternative(id, logprob.logprob),
                top_logprobs: logprob.top.iter().map(|&(id, logprob)| alternative(id, logprob)).collect(),
            })
            .collect();
        Self { content, refusal: None }
    }
}

/// The log-probabilities of a completion, as one list per property.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct CompletionLogprobs {
    /// The texts of the tokens.
    pub(crate) tokens: Vec<String>,
    /// The log-probabilities. The first token of a prompt has none.
    pub(crate) token_logprobs: Vec<Option<f32>>,
    /// The most likely tokens at each position, by text.
    #[schema(value_type = Vec<Option<Object>>)]
    pub(crate) top_logprobs: Vec<Option<Map<String, Value>>>,
    /// The start of each token in the returned text, in characters.
    pub(crate) text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Returns the log-probabilities of the next tokens of a prompt and of its answer. `offsets` tracks their positions in the text.
    pub(crate) fn new(
        prompt: &[Token],
        answer: &[Token],
        tokenizer: &Tokenizer,
        offsets: &mut TextOffsets,
    ) -> Self {
        let name = |id: u32| String::from_utf8_lossy(&tokenizer.token_bytes(id)).into_owned();
        let mut lists = Self::default();
        lists.text_offset.extend(prompt.iter().map(|_| offsets.next_prompt_offset()));
        lists.text_offset.extend(answer.iter().map(|token| offsets.next_answer_offset(token.id)));
        for token in prompt.iter().chain(answer) {
            lists.tokens.push(name(token.id));
            lists.token_logprobs.push(token.logprob.as_ref().map(|it| it.logprob.max(MIN_LOGPROB)));
            lists.top_logprobs.push(token.logprob.as_ref().map(|it| {
                let likeliest =
                    it.top.iter().map(|&(id, logprob)| (name(id), logprob.max(MIN_LOGPROB).into()));
                // If two tokens have the same text, the more likely one is shown.
                likeliest.rev().collect()
            }));
        }
        lists
    }
}
