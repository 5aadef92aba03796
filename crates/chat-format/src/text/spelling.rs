//! Tokens for bytes that must be written.

use super::Tokenizer;

impl Tokenizer {
    /// Returns the tokens that a model would most likely use for these bytes, up to the first position where no token matches. An
    /// incomplete character at the end is skipped.
    pub fn spell(&self, bytes: &[u8]) -> Vec<u32> {
        let text = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        let tokens = self.encode(text, false).unwrap_or_default();
        // Some tokenizers begin every text with a space.
        if self.bytes_of(&tokens) == text.as_bytes() { tokens } else { self.longest_tokens(text.as_bytes()) }
    }

    /// Returns the bytes of several tokens.
    pub(crate) fn bytes_of(&self, tokens: &[u32]) -> Vec<u8> {
        tokens.iter().flat_map(|token| self.token_bytes(*token)).collect()
    }

    /// Returns the tokens that are no whole characters, with their bytes. The first call reads the whole vocabulary.
    pub(crate) fn broken_tokens(&self) -> &[(u32, Vec<u8>)] {
        let bytes = |id| (id, self.token_bytes(id));
        let ids = 0..self.vocab_size() as u32;
        self.broken(|| ids.map(bytes).filter(|(_, bytes)| std::str::from_utf8(bytes).is_err()).collect())
    }

    /// Returns the longest token at each position.
    fn longest_tokens(&self, mut bytes: &[u8]) -> Vec<u32> {
        let mut tokens = Vec::new();
        while let Some((token, length)) = self.prefix_tokens(bytes).last() {
            tokens.push(token);
            bytes = &bytes[length..];
        }
        tokens
    }
}
