//! Drafts for text that a constraint fully determines.

use chat_format::text::Tokenizer;

/// Returns the tokens that a model would most likely use for these bytes. An incomplete character at the end is skipped.
pub(super) fn tokens_of(bytes: &[u8], tokenizer: &Tokenizer) -> Vec<u32> {
    let text = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let tokens = tokenizer.encode(text, false).unwrap_or_default();
    let written: Vec<u8> = tokens.iter().flat_map(|token| tokenizer.token_bytes(*token)).collect();
    // Some tokenizers begin every text with a space.
    if written == text.as_bytes() { tokens } else { longest_tokens(text.as_bytes(), tokenizer) }
}

/// Returns the longest token at each position, up to the first position where no token matches.
fn longest_tokens(mut bytes: &[u8], tokenizer: &Tokenizer) -> Vec<u32> {
    let mut tokens = Vec::new();
    while let Some((token, length)) = tokenizer.prefix_tokens(bytes).last() {
        tokens.push(token);
        bytes = &bytes[length..];
    }
    tokens
}
