//! Writes the objects of text completions.

use super::{Writer, finish_reason, json};
use crate::delta::{Delta, Progress};
use crate::protocol::openai::answer::{CompletionAnswer, CompletionChoice};
use crate::protocol::openai::logprobs::CompletionLogprobs;

impl Writer {
    /// Returns the chunk with the prompt, if the client asked for its text or tokens.
    pub(super) fn completion_opening(&self, choice: usize) -> Option<String> {
        let (prompt, _) = self.prompt_of(choice);
        if prompt.echo.is_empty() && !self.output_options.token_ids {
            return None;
        }
        let opening = CompletionChoice {
            index: choice,
            text: prompt.echo.clone(),
            logprobs: None,
            finish_reason: None,
            token_ids: self.output_options.token_ids.then(Vec::new),
            prompt_token_ids: self.output_options.token_ids.then(|| prompt.ids.clone()),
        };
        Some(json(&self.answer("text_completion", vec![opening])))
    }

    pub(super) fn completion_progress(&self, choice: usize, progress: Progress) -> String {
        let choice = CompletionChoice {
            index: choice,
            text: String::new(),
            logprobs: None,
            finish_reason: None,
            token_ids: None,
            prompt_token_ids: None,
        };
        let mut chunk: CompletionAnswer = self.answer("text_completion", vec![choice]);
        chunk.prompt_progress = Some(progress);
        json(&chunk)
    }

    pub(super) fn completion_chunk(&mut self, mut delta: Delta) -> String {
        let ids = self.ids(&delta.tokens);
        let choice = CompletionChoice {
            index: delta.choice,
            text: std::mem::take(&mut delta.content),
            logprobs: self.completion_logprobs(&delta),
            finish_reason: delta.end.as_ref().map(|end| finish_reason(&end.reason)),
            token_ids: ids,
            prompt_token_ids: None,
        };
        json(&self.answer("text_completion", vec![choice]))
    }

    pub(super) fn completion_json(&mut self, deltas: Vec<Delta>) -> String {
        let choices = deltas.into_iter().map(|delta| self.completion_choice(delta)).collect();
        let mut answer: CompletionAnswer = self.answer("text_completion", choices);
        (answer.usage, answer.timings) = (Some(self.usage()), self.timings());
        json(&answer)
    }

    fn completion_choice(&mut self, delta: Delta) -> CompletionChoice {
        let ids = self.ids(&delta.tokens);
        let logprobs = self.completion_logprobs(&delta);
        let (prompt, _) = self.prompt_of(delta.choice);
        CompletionChoice {
            index: delta.choice,
            text: prompt.echo.clone() + &delta.content,
            logprobs,
            finish_reason: delta.end.map(|end| finish_reason(&end.reason)),
            token_ids: ids,
            prompt_token_ids: self.output_options.token_ids.then(|| prompt.ids.clone()),
        }
    }

    /// Returns the log-probabilities of the prompt's tokens, if they were scored, followed by those of the answer.
    fn completion_logprobs(&mut self, delta: &Delta) -> Option<CompletionLogprobs> {
        let offsets = self.tallies[delta.choice].offsets.as_mut()?;
        let lists = CompletionLogprobs::new(&delta.prompt, &delta.tokens, &self.meta.tokenizer, offsets);
        Some(lists).filter(|lists| !lists.tokens.is_empty() || delta.end.is_none())
    }
}
