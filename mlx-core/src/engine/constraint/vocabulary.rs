//! The vocabulary in the form that the grammar compiler expects: a tree of bytes.

use std::sync::Arc;

use chat_format::text::Tokenizer;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use super::matcher::first_line;

/// The maximum length of a token in bytes; longer tokens are excluded. The tree has this many levels.
const LONGEST: usize = 256;

/// The tree of a vocabulary.
struct Vocabulary(TokTrie);

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    /// Returns false. Otherwise, where the grammar allows a single text, a mask would allow a single token, which would change the draws.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// Builds the tree of the tokens with ids below `width`, the length of a row of logits. Special and end-of-sequence tokens have no text.
pub(super) fn vocabulary(tokenizer: &Tokenizer, width: usize, end_tokens: &[u32]) -> Result<TokEnv, String> {
    let bytes = |id: u32| {
        if end_tokens.contains(&id) || tokenizer.is_special(id) {
            let name = tokenizer.token(id).unwrap_or_default();
            return [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat();
        }
        tokenizer.token_bytes(id)
    };
    let drawable = |bytes: Vec<u8>| if bytes.len() > LONGEST { Vec::new() } else { bytes };
    let words: Vec<Vec<u8>> = (0..width as u32).map(|id| drawable(bytes(id))).collect();
    let ends: Vec<u32> = end_tokens.iter().copied().filter(|id| (*id as usize) < width).collect();
    let Some(&first) = ends.first() else { return Err("the model has no token that ends a text".into()) };
    let tree = catch_unwind(std::panic::AssertUnwindSafe(|| {
        Ok(TokTrie::from(&TokRxInfo::new(width as u32, first), &words).with_eos_tokens(&ends))
    }));
    match tree {
        Ok(tree) => Ok(Arc::new(Vocabulary(tree))),
        Err(error) => Err(format!("cannot build a tree of the model's tokens: {}", first_line(&error))),
    }
}
