//! Alternative answers that share their first tokens with the last answer.

use chat_format::ToolChoice;

use super::ChatSession;
use super::answer::Answer;
use crate::engine::TokenOutput;
use crate::error::{Error, Result};

impl ChatSession {
    /// Answers the last user message again, starting with the tokens `kept` of the old answer and then `token`. The seed is that of the old
    /// answer. The new answer replaces the old one when it starts.
    ///
    /// # Errors
    /// Also if the session has a constraint or tools, because a constraint follows an answer from its beginning, or if `token` would end the
    /// answer.
    pub fn branch(&mut self, kept: &[TokenOutput], token: u32) -> Result<Answer<'_>> {
        let refused = |why: &str| Err(Error::request("branch", why));
        let Some(last) = self.last_question_index() else {
            return refused("there is no answer to branch from");
        };
        if self.options.constraint.is_some() || self.tools.are_shown(&ToolChoice::Auto) {
            return refused("an answer with a constraint or tools cannot be branched");
        }
        if self.engine.folder().end_tokens.contains(&token) {
            return refused("the answer would end with this token");
        }
        let dropped = self.messages.split_off(last + 1);
        let begun = [kept, &[self.following(kept, token)]].concat();
        match self.start_after(begun, &ToolChoice::None) {
            Ok(stream) => Ok(Answer::new(self, stream)),
            Err(error) => {
                self.messages.extend(dropped);
                Err(error)
            }
        }
    }

    /// Continues the last answer after its tokens, which an interruption or a limit ended. It may generate as many tokens again as the options allow. The
    /// new answer begins with the old one and replaces it when it starts.
    ///
    /// # Errors
    /// Also if the session has a constraint or tools, as for [`branch`](Self::branch).
    pub fn continue_answer(&mut self, tokens: &[TokenOutput]) -> Result<Answer<'_>> {
        let refused = |why: &str| Err(Error::request("continue", why));
        let Some(last) = self.last_question_index().filter(|_| !tokens.is_empty()) else {
            return refused("there is no answer to continue");
        };
        if self.options.constraint.is_some() || self.tools.are_shown(&ToolChoice::Auto) {
            return refused("an answer with a constraint or tools cannot be continued");
        }
        let dropped = self.messages.split_off(last + 1);
        let limit = self.options.max_tokens;
        // The limit includes the tokens so far.
        self.options.max_tokens = limit.map(|limit| limit.saturating_add(tokens.len()));
        let started = self.start_after(tokens.to_vec(), &ToolChoice::None);
        self.options.max_tokens = limit;
        match started {
            Ok(stream) => Ok(Answer::new(self, stream)),
            Err(error) => {
                self.messages.extend(dropped);
                Err(error)
            }
        }
    }

    /// Returns a token with its text after `kept`.
    fn following(&self, kept: &[TokenOutput], id: u32) -> TokenOutput {
        let mut detokenizer = self.engine.folder().tokenizer.detokenizer(true);
        for token in kept {
            detokenizer.push(token.id);
        }
        let text = detokenizer.push(id);
        TokenOutput { id, delta: text.clone(), text, logprob: None }
    }
}
