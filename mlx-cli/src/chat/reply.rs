//! Reads the answers of a chat: text on the screen, and figures below it.

use std::ops::Range;

use mlx_core::Error;
use mlx_core::chat::{self, ChatSession, ContextFill};
use mlx_core::engine::{FinishReason, Finished, TokenOutput};

use super::style::styled;
use super::{Chat, Colors, Screen};
use crate::answer::{self, Answer, AnswerOutput};
use crate::ask;
use crate::exit_code::Failure;
use crate::terminal;

/// The kind of figures shown below an answer.
#[derive(PartialEq, Eq)]
pub(super) enum StatsLevel {
    None,
    Short,
    All,
}

impl Chat {
    /// Starts an answer and reads it, including the follow-up answers to tool results.
    pub(super) fn respond(
        &mut self,
        start: impl FnOnce(&mut ChatSession) -> Result<chat::Answer<'_>, Error>,
    ) -> Result<(), Failure> {
        self.read_answer(start)?;
        self.run_tool_calls()
    }

    /// Starts an answer, notes which messages left the context, and reads the answer.
    pub(super) fn read_answer(
        &mut self,
        start: impl FnOnce(&mut ChatSession) -> Result<chat::Answer<'_>, Error>,
    ) -> Result<(), Failure> {
        let before = self.session.dropped();
        let colors = if self.colors { Colors::All } else { Colors::None };
        let show = AnswerOutput::Screen(Box::new(Screen::new(colors, self.view, terminal::columns())));
        // The session records the answer once it is read.
        let answer = start(&mut self.session)?;
        note_dropped(&before, &answer.dropped());
        let answer = answer::read_chat(answer.canceller(), answer, &self.interrupt, show)?;
        self.end_answer(answer)
    }

    fn end_answer(&mut self, answer: Answer) -> Result<(), Failure> {
        let has_calls = !self.session.open_calls().is_empty();
        if !has_calls || !answer.text.is_empty() {
            terminal::show("\n")?;
        }
        if self.stats == StatsLevel::All {
            terminal::note(&answer.timings());
        }
        let failure = answer.failure();
        match answer.finished.reason {
            FinishReason::Length => {
                terminal::note(&self.length_note(answer.finished.usage.completion_tokens));
            }
            FinishReason::Cancelled => terminal::note("(stopped)"),
            _ => {}
        }
        if let Some(note) = answer.repetition_note("/params dry_multiplier=0.8, then /retry,") {
            terminal::note(&note);
        }
        let status = answer.status();
        self.note_doubt(&answer.tokens);
        self.is_cut = matches!(answer.finished.reason, FinishReason::Length | FinishReason::Cancelled);
        self.last = answer.tokens;
        self.last_options = Some(self.session.options().clone());
        self.save_session()?;
        if self.stats == StatsLevel::Short && !has_calls {
            let line = status + &self.context_note(&answer.finished);
            terminal::note_styled(&if self.colors { styled("\x1b[2m", &line) } else { line });
        }
        failure.map_or(Ok(()), Err)
    }

    /// Prints a note if the guide is unsure of its answer.
    fn note_doubt(&self, tokens: &[TokenOutput]) {
        let is_guide = mlx_guide::is_at(&self.session.engine().folder().path);
        let doubt = self
            .session
            .last_question()
            .filter(|_| is_guide)
            .and_then(|question| ask::doubt_note(&question, tokens));
        if let Some(doubt) = doubt {
            terminal::note(&doubt);
        }
    }

    /// Returns a note that names the limit that ended the answer.
    fn length_note(&self, tokens: usize) -> String {
        match self.session.options().max_tokens {
            Some(limit) if limit <= tokens => format!("(stopped at {limit} tokens: max_tokens)"),
            _ => {
                let context = self.session.engine().spec().context_length;
                format!("(stopped: the context of {context} tokens is full)")
            }
        }
    }

    /// Returns how full the context is, or nothing if this answer filled it: then the next prompt drops messages.
    fn context_note(&self, finished: &Finished) -> String {
        let context = self.session.engine().spec().context_length;
        let Ok(ContextFill { used, .. }) = self.session.fill() else { return String::new() };
        if finished.usage.prompt_tokens + finished.usage.completion_tokens >= context {
            return String::new();
        }
        format!(", context {} of {}", thousands(used), thousands(context))
    }
}

/// Formats a number of tokens like a context size, in units of 1024.
fn thousands(tokens: usize) -> String {
    if tokens < 1024 {
        return tokens.to_string();
    }
    let tenths = format!("{:.1}", tokens as f64 / 1024.0);
    format!("{}k", tenths.strip_suffix(".0").unwrap_or(&tenths))
}

/// Notes that the model sees fewer messages than before.
fn note_dropped(before: &Range<usize>, dropped: &Range<usize>) {
    if dropped != before && !dropped.is_empty() {
        let count = dropped.len();
        terminal::note(&format!(
            "(the context is full: the model no longer sees the oldest {count} messages of this conversation)"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_counted_as_contexts_are_named() {
        for (tokens, name) in
            [(0, "0"), (1023, "1023"), (1024, "1k"), (1229, "1.2k"), (8192, "8k"), (131_072, "128k")]
        {
            assert_eq!(thousands(tokens), name);
        }
    }
}
