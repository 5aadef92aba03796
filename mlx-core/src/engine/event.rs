//! The events of a generation.

use super::options::Exactness;
use super::usage::{Timings, Usage};
use crate::sampling::TokenLogprob;

/// An event of a generation. The order is: progress of the prompt, prompt tokens and the embedding if requested, tokens, then one `Done`.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// `read` of the `total` tokens of the prompt were read, those from a cache included; the rest is to come.
    PromptProgress {
        /// Tokens that were read.
        read: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token of the prompt was scored.
    Prompt(PromptToken),
    /// The prompt as a vector, not normalized.
    Embedding(Vec<f32>),
    /// A token was accepted.
    Token(TokenOutput),
    /// The generation has ended; nothing follows.
    Done(Finished),
}

impl Event {
    /// The text that this event adds to the answer; empty for events of the prompt.
    pub fn delta(&self) -> &str {
        match self {
            Self::Token(token) => &token.delta,
            Self::Done(finished) => &finished.delta,
            Self::PromptProgress { .. } | Self::Prompt(_) | Self::Embedding(_) => "",
        }
    }
}

/// One token of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptToken {
    /// The token.
    pub id: u32,
    /// The text this token made certain.
    pub text: String,
    /// Its log-probability after the tokens before it; the first token has none.
    pub logprob: Option<TokenLogprob>,
}

/// One accepted token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenOutput {
    /// The token.
    pub id: u32,
    /// The text this token made certain; empty while a character is incomplete. It may go beyond a stop string.
    pub text: String,
    /// The text that may be shown now: without a stop string or what could become one.
    pub delta: String,
    /// Its log-probability and those of the likeliest tokens, when asked for.
    pub logprob: Option<TokenLogprob>,
}

/// The end of a generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// The last of the text, which was held back until it was certain.
    pub delta: String,
    /// Tokens in and out.
    pub usage: Usage,
    /// The time by phase.
    pub timings: Timings,
    /// The reproducibility of this result.
    pub exactness: Exactness,
}

/// Why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its text.
    EndToken,
    /// This stop string came.
    StopString(String),
    /// The token limit or the end of the context was reached.
    Length,
    /// The caller cancelled it, or dropped the generation.
    Cancelled,
    /// It failed, and this is why. The tokens before it are good.
    Error(String),
}

impl FinishReason {
    /// The name in OpenAI's terms, and ours where they have none.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::EndToken | Self::StopString(_) => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Error(_) => "error",
        }
    }
}
