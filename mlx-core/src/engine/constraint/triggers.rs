//! The markers that start a constraint, as bytes.

use std::sync::Arc;

use chat_format::{Marker, MarkerPiece, Thoughts};
use llguidance::toktrie::TokEnv;

use super::matcher::Matcher;

/// The markers that start a constraint. Special tokens are represented by bytes that no text contains.
pub(super) struct Triggers {
    pub(super) markers: Vec<Vec<u8>>,
    pub(super) thoughts: Option<ThoughtBytes>,
    /// Tokens that complete a marker but continue with text that the grammar cannot begin with. Each is paired with the marker's bytes
    /// before the token.
    pub(super) straddling: Vec<(u32, Vec<u8>)>,
    tokens: TokEnv,
}

/// The tags of thoughts.
pub(super) struct ThoughtBytes {
    pub(super) is_open: bool,
    pub(super) open: Vec<u8>,
    pub(super) close: Vec<u8>,
}

impl Triggers {
    /// Finds the tokens that may not complete a marker, for a grammar with the initial state `start`.
    pub(super) fn new(
        markers: &[Marker],
        thoughts: Option<Thoughts>,
        start: &Matcher,
        tokens: &TokEnv,
    ) -> Result<Self, String> {
        let bytes = |marker: &Marker| bytes_of(marker, tokens);
        let thoughts = thoughts.map(|it| ThoughtBytes {
            is_open: it.is_open,
            open: bytes(&it.open),
            close: bytes(&it.close),
        });
        let markers: Vec<Vec<u8>> = markers.iter().map(bytes).collect();
        if markers.is_empty() || markers.iter().any(Vec::is_empty) {
            return Err("has no marker or an empty one".into());
        }
        let mut triggers = Self { markers, thoughts, straddling: Vec::new(), tokens: Arc::clone(tokens) };
        triggers.straddling = triggers.straddling(&mut start.copy())?;
        Ok(triggers)
    }

    fn straddling(&self, start: &mut Matcher) -> Result<Vec<(u32, Vec<u8>)>, String> {
        let mut found = Vec::new();
        for id in 0..self.vocabulary() as u32 {
            let token = self.bytes(id);
            for marker in &self.markers {
                let inside = find(token, marker).map(|at| (0, at + marker.len()));
                let begins = (1..marker.len()).filter(|&before| token.starts_with(&marker[before..]));
                let begins = begins.map(|before| (before, marker.len() - before));
                for (before, end) in begins.chain(inside).filter(|(_, end)| *end < token.len()) {
                    if !self.can_continue_with(&token[end..], start)? {
                        found.push((id, marker[..before].to_vec()));
                    }
                }
            }
        }
        Ok(found)
    }

    /// Returns true if the grammar can begin with these bytes of a token.
    fn can_continue_with(&self, rest: &[u8], start: &mut Matcher) -> Result<bool, String> {
        let tokens = self.tokens_of(rest);
        Ok(self.tokens.tok_trie().decode_raw(&tokens) == rest && start.accepts(&tokens)?)
    }

    /// Returns tokens for the bytes after a marker.
    pub(super) fn tokens_of(&self, rest: &[u8]) -> Vec<u32> {
        self.tokens.tokenize_bytes(rest)
    }

    /// Returns the number of tokens.
    pub(super) fn vocabulary(&self) -> usize {
        self.tokens.tok_trie().vocab_size()
    }

    /// Returns the bytes of a token.
    pub(super) fn bytes(&self, token: u32) -> &[u8] {
        self.tokens.tok_trie().token(token)
    }

    /// Returns the maximum length of an incomplete marker or tag, in bytes.
    pub(super) fn longest(&self) -> usize {
        let tags = self.thoughts.iter().flat_map(|it| [&it.open, &it.close]);
        self.markers.iter().chain(tags).map(Vec::len).max().unwrap_or(0)
    }
}

fn bytes_of(marker: &Marker, tokens: &TokEnv) -> Vec<u8> {
    let piece = |piece: &MarkerPiece| match piece {
        MarkerPiece::Text(text) => text.clone().into_bytes(),
        MarkerPiece::Special(token) => tokens.tok_trie().token(*token).to_vec(),
    };
    marker.pieces().iter().flat_map(piece).collect()
}

/// Returns the position of the first occurrence of `part` in `text`.
pub(super) fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}
