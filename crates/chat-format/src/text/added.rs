//! Finds added tokens in a text. The matches equal the tokenizers crate's, but the text is not copied.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::AddedToken;

/// A searchable set of a tokenizer's added tokens.
#[derive(Debug)]
pub(super) struct AddedTokens {
    automaton: AhoCorasick,
    /// In the order of the automaton's patterns.
    found: Vec<Found>,
}

/// The properties of an added token.
#[derive(Debug)]
struct Found {
    id: u32,
    /// True if it includes the whitespace before it.
    lstrip: bool,
    /// True if it includes the whitespace after it.
    rstrip: bool,
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// An added token.
    Token(u32),
    /// Text between added tokens; never empty.
    Text(Range<usize>),
}

impl AddedTokens {
    /// Builds the set from tokens with their ids and texts. Returns `None` if matching a token depends on more than its
    /// text.
    pub(super) fn new(tokens: impl Iterator<Item = (u32, AddedToken, String)>) -> Option<Self> {
        let (mut found, mut patterns) = (Vec::new(), Vec::new());
        for (id, token, text) in tokens {
            if token.single_word || text.is_empty() {
                return None;
            }
            found.push(Found { id, lstrip: token.lstrip, rstrip: token.rstrip });
            patterns.push(text);
        }
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(patterns).ok()?;
        Some(Self { automaton, found })
    }

    /// Calls `each` for the parts of a text in order, until it fails.
    pub(super) fn parts<E>(&self, text: &str, mut each: impl FnMut(Part) -> Result<(), E>) -> Result<(), E> {
        let mut done = 0;
        for hit in self.automaton.find_iter(text) {
            let token = &self.found[hit.pattern().as_usize()];
            let (mut start, mut end) = (hit.start(), hit.end());
            if token.lstrip {
                start = text[..start].trim_end().len().max(done);
            }
            if token.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            if done < start {
                each(Part::Text(done..start))?;
            }
            each(Part::Token(token.id))?;
            done = end;
        }
        if done < text.len() { each(Part::Text(done..text.len())) } else { Ok(()) }
    }
}
