//! What a request took: tokens and time.

use super::drafters::DraftCounts;
use super::miss::Miss;

/// Tokens in and out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were not computed again.
    pub cached_tokens: usize,
    /// Tokens that were drawn, the one that ended the text included.
    pub completion_tokens: usize,
    /// Drawn tokens at the end of a text that repeat a loop; 0 if the text did not end in one.
    pub repeated_tokens: usize,
    /// How its drafts went.
    pub drafts: DraftCounts,
    /// Where the prompt left a kept text that goes on, if it left one of 64 tokens or more. Between turns of one conversation it says why
    /// more was computed than what is new; [`Engine::last_miss`](super::Engine::last_miss) has the tokens.
    pub miss: Option<Miss>,
}

/// Where the time went, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timings {
    /// From the queue to the start of the prompt.
    pub queue: f64,
    /// From the start of the prompt to the first token.
    pub prefill: f64,
    /// From the first token to the last.
    pub decode: f64,
}

impl Usage {
    /// Prompt tokens computed per second.
    pub fn prefill_rate(&self, timings: &Timings) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens, timings.prefill)
    }

    /// Tokens drawn per second after the first, which belongs to the prompt's time.
    pub fn decode_rate(&self, timings: &Timings) -> f64 {
        rate(self.completion_tokens.saturating_sub(1), timings.decode)
    }
}

fn rate(count: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}
