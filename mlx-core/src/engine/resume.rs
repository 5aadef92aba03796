//! Requests that continue an earlier run of the same request, which was lost with its engine.

use super::handle::Engine;
use super::request::GenerationRequest;
use super::usage::Usage;
use crate::error::{Error, Result};

/// The results that a lost run of a request delivered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resume {
    /// The tokens, in order.
    pub tokens: Vec<u32>,
    /// The last known usage of that run. Cached tokens, drafts and the miss are continued; the other counts follow from the tokens.
    pub usage: Usage,
}

impl Engine {
    /// Returns a checked request that continues after the tokens of an earlier run, like a sequence after a preemption. Its events are those
    /// that the earlier run would have sent next: tokens, texts, usage and draws do not depend on the interruption. Timings begin with
    /// this run. Without tokens, the request starts again.
    pub fn resumed(&self, mut request: GenerationRequest, resume: Resume) -> Result<GenerationRequest> {
        let (count, most, width) = (resume.tokens.len(), request.limits.max_tokens, self.spec().vocab_size);
        if count > most {
            let message = format!("has {count} tokens; the request generates at most {most}");
            return Err(Error::request("resume", message));
        }
        if let Some(token) = resume.tokens.iter().find(|&&token| token as usize >= width) {
            let message = format!("holds token id {token}; the model's ids end at {}", width - 1);
            return Err(Error::request("resume", message));
        }
        if count > 0 {
            // Scores and embeddings of the prompt precede its first token.
            (request.prompt_logprobs, request.embed) = (None, None);
            request.resume = resume;
        }
        Ok(request)
    }
}
