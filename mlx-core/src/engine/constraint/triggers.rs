//! The markers that a constraint waits for, as bytes.

use std::sync::Arc;

use chat_format::{Marker, MarkerPiece, Thoughts};
use llguidance::toktrie::TokEnv;

use super::matcher::Matcher;

/// What a constraint waits for; special tokens are bytes that no text has.
pub(super) struct Triggers {
    pub(super) markers: Vec<Vec<u8>>,
    pub(super) thoughts: Option<ThoughtBytes>,
    /// Tokens that complete a marker and go on with what the grammar does not begin with, each with the bytes of the
    /// marker before it.
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
    /// Finds the tokens that may not complete a marker of the grammar that begins at `start`.
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
            return Err("begins behind no marker".into());
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
                    if !self.goes_on(&token[end..], start)? {
                        found.push((id, marker[..before].to_vec()));
                    }
                }
            }
        }
        Ok(found)
    }

    /// Whether the grammar may begin with these bytes of a token.
    fn goes_on(&self, rest: &[u8], start: &mut Matcher) -> Result<bool, String> {
        let tokens = self.tokens_of(rest);
        Ok(self.tokens.tok_trie().decode_raw(&tokens) == rest && start.accepts(&tokens)?)
    }

    /// Tokens of the bytes behind a marker.
    pub(super) fn tokens_of(&self, rest: &[u8]) -> Vec<u32> {
        self.tokens.tokenize_bytes(rest)
    }

    /// The number of tokens.
    pub(super) fn vocabulary(&self) -> usize {
        self.tokens.tok_trie().vocab_size()
    }

    /// The bytes of a token.
    pub(super) fn bytes(&self, token: u32) -> &[u8] {
        self.tokens.tok_trie().token(token)
    }

    /// The most bytes of which a marker or tag that is not complete may consist.
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

/// Where a part begins in a text.
pub(super) fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}
