//! The events of a generation.

use serde::{Deserialize, Serialize};

use super::options::Exactness;
use super::usage::{Timings, Usage};
use crate::sampling::TokenLogprob;
use crate::speech::WindowResult;

/// An event of a generation. Progress of the prompt comes first, then prompt tokens and the embedding if requested, then tokens, then one
/// `Done`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// `read` of the `total` prompt tokens were read, including those from a cache.
    PromptProgress {
        /// Prompt tokens read so far.
        read: usize,
        /// Tokens of the prompt.
        total: usize,
        /// Tokens among `read` that came from a cache.
        cached: usize,
        /// Seconds since the sequence started.
        seconds: f64,
    },
    /// A token of the prompt was scored.
    Prompt(PromptToken),
    /// The embedding of the prompt, not normalized.
    Embedding(Vec<f32>),
    /// The logits of a cross-encoder's head, one for each label.
    Scores(Vec<f32>),
    /// The text of a window of audio.
    Window(Box<WindowResult>),
    /// A token was accepted.
    Token(TokenOutput),
    /// The generation has ended. No event follows.
    Done(Finished),
}

impl Event {
    /// Returns the text that this event adds to the answer; empty for events of the prompt.
    pub fn delta(&self) -> &str {
        match self {
            Self::Token(token) => &token.delta,
            Self::Done(finished) => &finished.delta,
            Self::PromptProgress { .. }
            | Self::Prompt(_)
            | Self::Embedding(_)
            | Self::Scores(_)
            | Self::Window(_) => "",
        }
    }
}

/// One token of the prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptToken {
    /// The token.
    pub id: u32,
    /// The text that became certain with this token.
    pub text: String,
    /// The log-probability of the token after the tokens before it; `None` for the first token.
    pub logprob: Option<TokenLogprob>,
}

/// One accepted token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenOutput {
    /// The token.
    pub id: u32,
    /// The text that became certain with this token; empty while a character is incomplete. It may extend beyond a stop string.
    pub text: String,
    /// The text that can be shown now. It contains no stop string and no possible start of one.
    pub delta: String,
    /// The log-probabilities of the token and of the most likely tokens, if requested.
    pub logprob: Option<TokenLogprob>,
}

/// The end of a generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// The reason for the end.
    pub reason: FinishReason,
    /// The last of the text, which was held back until it was certain.
    pub delta: String,
    /// Token counts.
    pub usage: Usage,
    /// The duration of each phase.
    pub timings: Timings,
    /// The reproducibility of this result.
    pub exactness: Exactness,
}

/// The reason why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// The model ended its text.
    EndToken,
    /// This stop string occurred.
    StopString(String),
    /// The token limit or the end of the context was reached.
    Length,
    /// The caller cancelled it, or dropped the generation.
    Cancelled,
    /// The generation failed with this message. The tokens before the failure are valid.
    Error(String),
}

impl FinishReason {
    /// Returns OpenAI's name of the reason, or our own name where OpenAI has none.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::EndToken | Self::StopString(_) => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Error(_) => "error",
        }
    }
}
