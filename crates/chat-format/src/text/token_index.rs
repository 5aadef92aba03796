//! The tokens of a vocabulary by their bytes. A constraint looks up which tokens continue a text.

use std::collections::HashMap;

/// Token ids by the bytes that they stand for, without special tokens.
#[derive(Debug)]
pub(super) struct TokenIndex {
    ids: HashMap<Vec<u8>, Vec<u32>>,
    longest: usize,
}

impl TokenIndex {
    /// An index of these tokens, each with its bytes. Tokens without bytes are left out.
    pub(super) fn new(tokens: impl Iterator<Item = (u32, Vec<u8>)>) -> Self {
        let mut ids: HashMap<Vec<u8>, Vec<u32>> = HashMap::new();
        for (id, bytes) in tokens.filter(|(_, bytes)| !bytes.is_empty()) {
            ids.entry(bytes).or_default().push(id);
        }
        let longest = ids.keys().map(Vec::len).max().unwrap_or(0);
        Self { ids, longest }
    }

    /// See [`super::Tokenizer::beginnings`].
    pub(super) fn beginnings<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (u32, usize)> + 'a {
        let lengths = 1..=text.len().min(self.longest);
        let of_length =
            |length: usize| self.ids.get(&text[..length]).into_iter().flatten().map(move |id| (*id, length));
        lengths.flat_map(of_length)
    }
}
