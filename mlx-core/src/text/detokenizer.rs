//! Turns tokens into text one by one, byte for byte what decoding all of them at once gives.

use super::decoder::Chain;
use super::tokenizer::Tokenizer;

/// Follows a sequence of tokens and gives its text as soon as it is certain.
///
/// Invariant: the text given so far is always a prefix of `decode` of the tokens so far and any that may follow, and
/// with [`finish`](Self::finish) it is exactly `decode` of all of them.
///
/// So a character that comes in several tokens is held until it is complete, and U+FFFD is only given for bytes that no
/// further token can repair. With byte fallback (Llama 2, Gemma) a run of byte tokens such as `<0xE6>` is text only if
/// all of it is valid, and otherwise one U+FFFD per byte: the run is held until a token that is not a byte ends it.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    chain: Chain,
}

impl Detokenizer {
    pub(super) fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        let chain = tokenizer.chain().clone();
        Self { tokenizer, skip_special, chain }
    }

    /// Takes the next token and gives the text that became certain, which may be none. An id that is not in the
    /// vocabulary has no text.
    pub fn push(&mut self, id: u32) -> String {
        match self.tokenizer.token(id) {
            Some(token) if self.skip_special && self.tokenizer.is_special_token(&token) => String::new(),
            Some(token) => self.chain.push(token),
            None => String::new(),
        }
    }

    /// Gives the rest of the text, with U+FFFD for an incomplete character, and starts anew.
    pub fn finish(&mut self) -> String {
        let rest = self.chain.finish();
        self.reset();
        rest
    }

    /// Forgets all tokens, as if none had been pushed: after a rollback push the whole history again.
    pub fn reset(&mut self) {
        self.chain = self.tokenizer.chain().clone();
    }
}
