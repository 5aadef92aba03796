//! Maps bytes to the tokens of a vocabulary, for constraints that need the tokens that can continue a text.

use std::collections::HashMap;

/// Token ids by their bytes, without special tokens.
#[derive(Debug)]
pub(super) struct TokenIndex {
    ids: HashMap<Vec<u8>, Vec<u32>>,
    longest: usize,
}

impl TokenIndex {
    /// Builds an index from tokens with their bytes. Tokens without bytes are skipped.
    pub(super) fn new(tokens: impl Iterator<Item = (u32, Vec<u8>)>) -> Self {
        let mut ids: HashMap<Vec<u8>, Vec<u32>> = HashMap::new();
        for (id, bytes) in tokens.filter(|(_, bytes)| !bytes.is_empty()) {
            ids.entry(bytes).or_default().push(id);
        }
        let longest = ids.keys().map(Vec::len).max().unwrap_or(0);
        Self { ids, longest }
    }

    /// See [`super::Tokenizer::prefix_tokens`].
    pub(super) fn prefix_tokens<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (u32, usize)> + 'a {
        let lengths = 1..=text.len().min(self.longest);
        let of_length =
            |length: usize| self.ids.get(&text[..length]).into_iter().flatten().map(move |id| (*id, length));
        lengths.flat_map(of_length)
    }
}
