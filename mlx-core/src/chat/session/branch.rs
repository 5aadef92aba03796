//! Another answer that begins like the last one and goes on with another token.

use chat_format::ToolChoice;

use super::answer::Answer;
use super::{ChatSession, calls};
use crate::chat::prompt::ChatPrompt;
use crate::chat::stream::ChatStream;
use crate::engine::{RequestOptions, TokenOutput};
use crate::error::{Error, Result};

impl ChatSession {
    /// Answers the last message of the person again: with the tokens `kept` of the old answer, then `token`, then what the model writes
    /// behind it. The seed is the one that the old answer had. The new answer replaces the old one when it starts.
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
        match self.start_behind(kept, token) {
            Ok(stream) => Ok(Answer::new(self, stream)),
            Err(error) => {
                self.messages.extend(dropped);
                Err(error)
            }
        }
    }

    fn start_behind(&mut self, kept: &[TokenOutput], token: u32) -> Result<ChatStream> {
        let ChatPrompt { text, tokens, images, dropped, slide } = self.prompt(&ToolChoice::None)?;
        let begun = [kept.to_vec(), vec![self.behind(kept, token)]].concat();
        let ids = begun.iter().map(|token| token.id);
        let mut options = RequestOptions { images, slide, is_message: true, ..self.options.clone() };
        options.max_tokens = options.max_tokens.map(|most| most.saturating_sub(begun.len()));
        options.sampling.seed = options.sampling.seed.or(self.seed);
        let request = self.engine.request(tokens.into_iter().chain(ids).collect(), &options)?;
        let seed = request.seed();
        let generation = self.engine.submit(request)?;
        (self.dropped, self.seed, self.is_unanswered) = (dropped, Some(seed), false);
        let parser = calls::parser(&self.engine, &self.tools, &ToolChoice::None, &text)?;
        Ok(ChatStream::new(generation, parser).behind(begun))
    }

    /// A token as it comes behind others.
    fn behind(&self, kept: &[TokenOutput], id: u32) -> TokenOutput {
        let mut detokenizer = self.engine.folder().tokenizer.detokenizer(true);
        for token in kept {
            detokenizer.push(token.id);
        }
        let text = detokenizer.push(id);
        TokenOutput { id, delta: text.clone(), text, logprob: None }
    }
}
