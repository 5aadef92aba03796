//! The objects of a completion's answer.

use super::{Writer, finish_reason, json};
use crate::piece::Piece;
use crate::protocol::openai::answer::{CompletionAnswer, CompletionChoice};
use crate::protocol::openai::logprobs::CompletionLogprobs;

impl Writer {
    /// The chunk with the prompt, if the response shows it.
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

    pub(super) fn completion_chunk(&mut self, mut piece: Piece) -> String {
        let ids = self.ids(&piece.tokens);
        let choice = CompletionChoice {
            index: piece.choice,
            text: std::mem::take(&mut piece.content),
            logprobs: self.completion_logprobs(&piece),
            finish_reason: piece.end.as_ref().map(|end| finish_reason(&end.reason)),
            token_ids: ids,
            prompt_token_ids: None,
        };
        json(&self.answer("text_completion", vec![choice]))
    }

    pub(super) fn completion_whole(&mut self, pieces: Vec<Piece>) -> String {
        let choices = pieces.into_iter().map(|piece| self.completion_choice(piece)).collect();
        let mut answer: CompletionAnswer = self.answer("text_completion", choices);
        (answer.usage, answer.timings) = (Some(self.usage()), self.timings());
        json(&answer)
    }

    fn completion_choice(&mut self, piece: Piece) -> CompletionChoice {
        let ids = self.ids(&piece.tokens);
        let logprobs = self.completion_logprobs(&piece);
        let (prompt, _) = self.prompt_of(piece.choice);
        CompletionChoice {
            index: piece.choice,
            text: prompt.echo.clone() + &piece.content,
            logprobs,
            finish_reason: piece.end.map(|end| finish_reason(&end.reason)),
            token_ids: ids,
            prompt_token_ids: self.output_options.token_ids.then(|| prompt.ids.clone()),
        }
    }

    /// Of the prompt's tokens, if they were scored, and then of the answer's.
    fn completion_logprobs(&mut self, piece: &Piece) -> Option<CompletionLogprobs> {
        let offsets = self.tallies[piece.choice].offsets.as_mut()?;
        let lists = CompletionLogprobs::new(&piece.prompt, &piece.tokens, &self.facts.tokenizer, offsets);
        Some(lists).filter(|lists| !lists.tokens.is_empty() || piece.end.is_none())
    }
}
