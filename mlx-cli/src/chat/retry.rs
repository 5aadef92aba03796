//! Inspects and regenerates the last answer: `/tokens`, `/why`, `/retry` and `/branch`.

use mlx_core::chat::ChatSession;

use super::wrap::Wrap;
use super::{Chat, tokens};
use crate::exit_code::Failure;
use crate::{repeat, terminal};

impl Chat {
    /// Answers again and reports whether the answer is identical if seed and parameters are.
    pub(super) fn retry(&mut self) -> Result<(), Failure> {
        let before = std::mem::take(&mut self.last);
        let options = self.session.options().clone();
        let repeats = repeat::is_repeatable(&options) && self.last_options.as_ref() == Some(&options);
        self.respond(ChatSession::retry)?;
        if repeats && !before.is_empty() {
            terminal::note(&repeat::verdict(&before, &self.last, &self.session.engine().folder().tokenizer));
        }
        Ok(())
    }

    /// Answers again from a token on, starting with one of its alternatives.
    pub(super) fn branch(&mut self, number: usize, choice: usize) -> Result<(), Failure> {
        let Some(token) = number.checked_sub(1).and_then(|at| self.last.get(at)) else {
            let count = self.last.len();
            self.report_error(&format!("the last answer has {count} tokens; /tokens shows their numbers"));
            return Ok(());
        };
        let others = tokens::alternatives(token);
        let Some(&(other, _)) = choice.checked_sub(1).and_then(|at| others.get(at)) else {
            self.report_error(&format!(
                "token {number} has {} alternatives; /why {number} shows them",
                others.len()
            ));
            return Ok(());
        };
        let prefix = self.last[..number - 1].to_vec();
        self.respond(|session| session.branch(&prefix, other))
    }

    /// Continues an answer that Ctrl-C or a limit ended.
    pub(super) fn continue_answer(&mut self) -> Result<(), Failure> {
        if self.last.is_empty() {
            self.report_error("there is no answer to continue; /retry answers the last message again");
            return Ok(());
        }
        if !self.is_cut {
            self.report_error("the last answer is complete");
            return Ok(());
        }
        let tokens = self.last.clone();
        self.respond(|session| session.continue_answer(&tokens))
    }

    /// Shows the last answer with its unlikely tokens marked.
    pub(super) fn show_tokens(&self) {
        if self.last.is_empty() {
            return terminal::note("there is no answer yet");
        }
        let tokenizer = &self.session.engine().folder().tokenizer;
        let map = tokens::heat_map(&self.last, tokenizer, self.colors);
        terminal::note_styled(
            &terminal::columns().map_or(map.clone(), |columns| Wrap::new(columns).wrap(&map)),
        );
    }

    /// Shows the alternatives of a token of the last answer.
    pub(super) fn show_alternatives(&mut self, number: usize) {
        let tokenizer = &self.session.engine().folder().tokenizer;
        match number.checked_sub(1).and_then(|at| self.last.get(at)) {
            Some(token) => terminal::note_styled(&tokens::alternatives_text(token, tokenizer)),
            None => self.report_error(&format!("the last answer has {} tokens", self.last.len())),
        }
    }
}
