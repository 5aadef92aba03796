//! Added tokens: where a text spells them out, found as the tokenizers crate finds them but without copies of the text.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::AddedToken;

/// Some of a tokenizer's added tokens, ready to be searched for.
#[derive(Debug)]
pub(super) struct AddedTokens {
    automaton: AhoCorasick,
    /// In the order of the automaton's patterns.
    found: Vec<Found>,
}

/// What to do where a token is found.
#[derive(Debug)]
struct Found {
    id: u32,
    /// Takes the white space before it.
    lstrip: bool,
    /// Takes the white space after it.
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
    /// These tokens, each with its id and the text that stands for it. `None` if one of them needs more than its text to be
    /// recognized.
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

    /// Gives the parts of a text in their order, until `each` fails.
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
