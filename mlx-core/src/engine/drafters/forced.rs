//! Drafts of the text that a constraint leaves as the only one.

use chat_format::text::Tokenizer;

/// The tokens that a model most likely writes these bytes with. Bytes behind the last whole character are left out.
pub(super) fn tokens_of(bytes: &[u8], tokenizer: &Tokenizer) -> Vec<u32> {
    let text = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let tokens = tokenizer.encode(text, false).unwrap_or_default();
    let written: Vec<u8> = tokens.iter().flat_map(|token| tokenizer.token_bytes(*token)).collect();
    // Some tokenizers begin every text with a space.
    if written == text.as_bytes() { tokens } else { longest_tokens(text.as_bytes(), tokenizer) }
}

/// The longest token at each place; they end where no token fits.
fn longest_tokens(mut bytes: &[u8], tokenizer: &Tokenizer) -> Vec<u32> {
    let mut tokens = Vec::new();
    while let Some((token, length)) = tokenizer.beginnings(bytes).last() {
        tokens.push(token);
        bytes = &bytes[length..];
    }
    tokens
}
