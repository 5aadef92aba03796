//! Another answer that begins like the last one and goes on with another token.

use chat_format::ToolChoice;

use super::ChatSession;
use super::answer::Answer;
use crate::engine::TokenOutput;
use crate::error::{Error, Result};

impl ChatSession {
    /// Answers the last message of the person again: with the tokens `kept` of the old answer, then `token`, then what the model writes
    /// after it. The seed is the one that the old answer had. The new answer replaces the old one when it starts.
    ///
    /// # Errors
    /// Also where a constraint holds, which follows an answer from its beginning, and if `token` would end the answer.
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

    /// A token as it comes after others.
    fn following(&self, kept: &[TokenOutput], id: u32) -> TokenOutput {
        let mut detokenizer = self.engine.folder().tokenizer.detokenizer(true);
        for token in kept {
            detokenizer.push(token.id);
        }
        let text = detokenizer.push(id);
        TokenOutput { id, delta: text.clone(), text, logprob: None }
    }
}
