//! An index of n-grams, which finds earlier occurrences of a text's end. The cost per token does not depend on the length of the text.

use std::collections::HashMap;

/// The minimum number of matching tokens.
const N: usize = 3;

/// The maximum number of earlier positions to compare, latest first.
const MAX_POSITIONS: usize = 16;

/// The maximum number of tokens to compare before a position.
const LONGEST: usize = 32;

/// Marks that there is no earlier position.
const NONE: u32 = u32::MAX;

/// A text with an index of its n-grams. It takes about 40 bytes per token.
#[derive(Debug, Default)]
pub(super) struct Ngrams {
    tokens: Vec<u32>,
    /// The last position where each n-gram ends.
    latest: HashMap<[u32; N], u32>,
    /// For each position, the previous position where an equal n-gram ends.
    before: Vec<u32>,
}

/// A position where the preceding tokens match the end of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    /// The index of the token that followed.
    pub(super) next: usize,
    /// The number of matching tokens, at most 32.
    pub(super) length: usize,
}

impl Ngrams {
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(super) fn extend(&mut self, tokens: &[u32]) {
        for &token in tokens {
            self.tokens.push(token);
            let place = self.tokens.len() as u32 - 1;
            let before = self.ngram(place as usize).and_then(|ngram| self.latest.insert(ngram, place));
            self.before.push(before.unwrap_or(NONE));
        }
    }

    /// Drops the tokens from `length` on.
    pub(super) fn truncate(&mut self, length: usize) {
        for place in (length..self.tokens.len()).rev() {
            let Some(ngram) = self.ngram(place) else { continue };
            match self.before[place] {
                NONE => self.latest.remove(&ngram),
                before => self.latest.insert(ngram, before),
            };
        }
        self.tokens.truncate(length);
        self.before.truncate(length);
    }

    fn ngram(&self, last: usize) -> Option<[u32; N]> {
        let first = (last + 1).checked_sub(N)?;
        self.tokens[first..=last].try_into().ok()
    }

    /// Returns the earlier position with the longest match to the end of this text; of several, the latest.
    pub(super) fn own_match(&self) -> Option<Match> {
        let newest = *self.before.last()?;
        self.longest(&self.tokens, newest)
    }

    /// Returns the position with the longest match to the end of another text; of several, the latest. A position at the very end does not
    /// count, since no token follows it.
    pub(super) fn match_of(&self, text: &[u32]) -> Option<Match> {
        let end: [u32; N] = text.last_chunk().copied()?;
        self.longest(text, *self.latest.get(&end)?)
    }

    fn longest(&self, text: &[u32], newest: u32) -> Option<Match> {
        let mut best: Option<Match> = None;
        let mut place = newest;
        for _ in 0..MAX_POSITIONS {
            if place == NONE {
                break;
            }
            let before = self.tokens[..=place as usize].iter().rev();
            let agree = before.zip(text.iter().rev()).take(LONGEST).take_while(|(one, other)| one == other);
            let found = Match { next: place as usize + 1, length: agree.count() };
            if found.next < self.tokens.len() && best.is_none_or(|best| found.length > best.length) {
                best = Some(found);
            }
            place = self.before[place as usize];
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Finds the match by a linear search, as the reference.
    fn searched(tokens: &[u32]) -> Option<Match> {
        let agree = |end: usize| {
            tokens[..end]
                .iter()
                .rev()
                .zip(tokens.iter().rev())
                .take_while(|(one, other)| one == other)
                .count()
        };
        let ends = (N..tokens.len()).rev().filter(|&end| agree(end) >= N).take(MAX_POSITIONS);
        let found = ends.map(|end| Match { next: end, length: agree(end).min(LONGEST) });
        // Of equal matches, take the first, which is the latest.
        found.reduce(|best, it| if it.length > best.length { it } else { best })
    }

    #[derive(Debug, Clone)]
    enum Change {
        Push(u32),
        Truncate(usize),
    }

    proptest! {
        #[test]
        fn it_finds_what_a_search_finds_after_any_changes(
            changes in proptest::collection::vec(
                prop_oneof![12 => (0..3u32).prop_map(Change::Push), 1 => (0..9usize).prop_map(Change::Truncate)],
                0..300,
            ),
        ) {
            let mut index = Ngrams::default();
            for change in changes {
                match change {
                    Change::Push(token) => index.extend(&[token]),
                    Change::Truncate(back) => index.truncate(index.tokens.len().saturating_sub(back)),
                }
                prop_assert_eq!(index.own_match(), searched(index.tokens()));
            }
            let mut anew = Ngrams::default();
            anew.extend(index.tokens());
            prop_assert_eq!(index.latest, anew.latest);
            prop_assert_eq!(index.before, anew.before);
        }
    }

    #[test]
    fn the_end_of_another_text_is_found() {
        let mut index = Ngrams::default();
        index.extend(&[1, 2, 3, 4, 5, 9, 2, 3, 4, 6]);
        assert_eq!(index.match_of(&[7, 2, 3, 4]), Some(Match { next: 9, length: 3 }), "the latest");
        assert_eq!(index.match_of(&[1, 2, 3, 4]), Some(Match { next: 4, length: 4 }), "the longest");
        assert_eq!(index.match_of(&[3, 4, 6]), None, "nothing follows");
        assert_eq!(index.match_of(&[3, 4]), None, "too short");
    }
}
