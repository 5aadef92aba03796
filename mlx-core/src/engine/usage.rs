//! Tokens and time of a request.

use serde::{Deserialize, Serialize};

use super::drafters::DraftCounts;
use super::miss::Miss;

/// The token counts of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were reused from a cache.
    pub cached_tokens: usize,
    /// Prompt tokens that are rows of audio.
    pub audio_tokens: usize,
    /// Drawn tokens, including the end token.
    pub completion_tokens: usize,
    /// Drawn tokens at the end of the text that repeat a loop; 0 if the text does not end in a loop.
    pub repeated_tokens: usize,
    /// The drafted and accepted tokens.
    pub drafts: DraftCounts,
    /// The first difference between the prompt and a longer cached text, if the two share 64 tokens or more. Between the turns of a
    /// conversation it explains why more than the new tokens was computed. [`Engine::last_miss`](super::Engine::last_miss) has the tokens.
    pub miss: Option<Miss>,
}

/// The durations of a request's phases, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// From submission to the start of the prefill.
    pub queue: f64,
    /// From the start of the prefill to the first token.
    pub prefill: f64,
    /// From the first token to the last.
    pub decode: f64,
}

impl Usage {
    /// Returns the prompt tokens computed per second.
    pub fn prefill_rate(&self, timings: &Timings) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens, timings.prefill)
    }

    /// Returns the tokens drawn per second after the first, which counts as prefill.
    pub fn decode_rate(&self, timings: &Timings) -> f64 {
        rate(self.completion_tokens.saturating_sub(1), timings.decode)
    }
}

fn rate(count: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}
