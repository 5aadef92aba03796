//! Finds positions at which a word can be split without changing its tokens.
//!
//! Byte-pair encoding joins adjacent letters into tokens of the vocabulary. If no token contains the letters `a` and
//! `b` next to each other, no token spans the position between them, so the texts before and after it are encoded
//! independently. Each of the two letters must be a token itself, or become byte tokens that are never joined, since
//! other letters may be dropped.

use std::collections::{HashMap, HashSet};

use tokenizers::ModelWrapper;

use super::bytes::byte_token;
use super::encoded::Stop;
use crate::error::Error;

/// The minimum size of a part in bytes.
const PART: usize = 512;
/// The maximum size of a part in bytes. Encoding takes about a hundred times its memory and cannot be paused.
pub(super) const LONGEST_PART: usize = 1 << 20;

/// The number of bytes between two checks of an unfinished part.
const CHECK_INTERVAL: usize = 4 << 10;
/// The value for pairs of letters about which nothing is known.
const UNKNOWN: usize = usize::MAX;

/// A step of splitting a word.
#[derive(Debug, Clone, Copy)]
pub(super) enum Division<'a> {
    /// The next part, which can be encoded separately.
    Part(&'a str),
    /// The next part is not complete yet.
    Unfinished {
        /// The bytes seen so far.
        bytes: usize,
        /// A lower bound of its tokens.
        tokens: usize,
    },
}

/// The pairs of adjacent letters in a vocabulary.
#[derive(Debug)]
pub(super) struct SplitPoints {
    /// Letters that are tokens.
    letters: HashSet<char>,
    /// True if all other letters become byte tokens that are never joined.
    in_bytes: bool,
    /// The length in letters of the longest token with this pair of adjacent letters.
    longest: HashMap<(char, char), usize>,
}

impl SplitPoints {
    /// Returns `None` if the model does more than join adjacent tokens.
    pub(super) fn new(model: &ModelWrapper) -> Option<Self> {
        let ModelWrapper::BPE(model) = model else { return None };
        let is_random = model.dropout.is_some_and(|share| share > 0.0);
        if is_random || model.continuing_subword_prefix.is_some() || model.end_of_word_suffix.is_some() {
            return None;
        }
        let (mut letters, mut longest) = (HashSet::new(), HashMap::new());
        let (mut bytes, mut joined) = (HashSet::new(), false);
        for token in model.get_vocab().into_keys() {
            match byte_token(&token) {
                Some(byte) => drop(bytes.insert(byte)),
                None => joined |= token.contains("<0x"),
            }
            let spelled: Vec<char> = token.chars().collect();
            if let [letter] = spelled[..] {
                letters.insert(letter);
            }
            for pair in spelled.windows(2) {
                let length = longest.entry((pair[0], pair[1])).or_default();
                *length = spelled.len().max(*length);
            }
        }
        let in_bytes = model.byte_fallback && bytes.len() == 256 && !joined;
        Some(Self { letters, in_bytes, longest })
    }

    /// Splits a word, and calls `each` for its parts in order.
    pub(super) fn parts(
        &self,
        word: &str,
        mut each: impl FnMut(Division) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let (mut start, mut last, mut seen) = (0, None, 0);
        let mut bound = Bound::default();
        for (place, letter) in word.char_indices() {
            let longest = last.map_or(UNKNOWN, |last| self.longest(last, letter));
            if longest == 1 && place - start >= PART {
                each(Division::Part(&word[start..place]))?;
                (start, bound) = (place, Bound::default());
            }
            bound.add(longest);
            if place - seen >= CHECK_INTERVAL {
                seen = place;
                each(Division::Unfinished { bytes: place - start, tokens: bound.tokens() })?;
            }
            if place - start > LONGEST_PART {
                return Err(too_long());
            }
            last = Some(letter);
        }
        each(Division::Part(&word[start..]))
    }

    /// Returns the length in letters of the longest token with these adjacent letters. It is 1 if there is none, so
    /// that a word can be split between them.
    fn longest(&self, first: char, second: char) -> usize {
        match [first, second].map(|letter| self.letters.contains(&letter)) {
            [true, true] => self.longest.get(&(first, second)).copied().unwrap_or(1),
            _ if self.in_bytes => 1,
            _ => UNKNOWN,
        }
    }
}

/// A lower bound of the tokens of a part. A token of `n` letters contains only pairs of adjacent letters that occur in
/// tokens of at least `n` letters. So if each letter counts as 1 divided by the length of the longest token with its
/// pairs, the letters of a token add up to at most 1.
#[derive(Debug, Default)]
struct Bound {
    sum: f64,
    /// The longest token with the last pair. 0 before the first letter.
    last: usize,
}

impl Bound {
    /// Adds the next letter and counts the previous one. `longest` belongs to the pair of both.
    fn add(&mut self, longest: usize) {
        if self.last > 0 {
            self.sum += 1.0 / self.last.max(longest) as f64;
        }
        self.last = longest;
    }

    fn tokens(&self) -> usize {
        self.sum as usize
    }
}

fn too_long() -> Stop {
    let message = format!("more than {LONGEST_PART} bytes without a possible token boundary; insert spaces");
    Stop::Failed(Error::Tokenizer(message))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn divisions(tokens: &[&str], settings: &Value) -> Option<SplitPoints> {
        let vocabulary: serde_json::Map<_, _> =
            tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), id.into())).collect();
        let mut model = json!({"type": "BPE", "vocab": vocabulary, "merges": []});
        model.as_object_mut()?.extend(settings.as_object()?.clone());
        SplitPoints::new(&serde_json::from_value(model).expect("a model"))
    }

    #[test]
    fn words_are_divided_where_no_token_reaches() {
        let divisions = divisions(&["a", "b", "ab", "aa", "é"], &json!({})).expect("it is known");
        let word = format!("{}{}{}", "ab".repeat(400), "aé".repeat(400), "aa☃a☃".repeat(400));
        let mut parts = Vec::new();
        let mut take = |division: Division| {
            if let Division::Part(part) = division {
                parts.push(part.to_owned());
            }
            Ok(())
        };
        divisions.parts(&word, &mut take).expect("it is short");
        assert_eq!(parts.concat(), word);
        for (left, right) in parts.iter().zip(&parts[1..]) {
            let place = format!(
                "{}{}",
                left.chars().last().expect("a letter"),
                right.chars().next().expect("a letter")
            );
            assert!(["ba", "aé", "éa"].contains(&place.as_str()), "{place}");
        }
        assert!(parts.len() >= 3, "{}", parts.len());
    }

    #[test]
    fn a_part_has_at_least_the_tokens_of_its_bound() {
        let divisions = divisions(&["a", "aa", "aaaa"], &json!({})).expect("it is known");
        let mut bound = Bound::default();
        for _ in 0..4000 {
            bound.add(divisions.longest('a', 'a'));
        }
        assert_eq!(bound.tokens(), 999, "tokens of four letters");
        assert_eq!(divisions.longest('a', 'b'), UNKNOWN, "b may have no token");
    }

    #[test]
    fn letters_that_become_bytes_are_divided() {
        let bytes: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
        let tokens = |more: &[&'static str]| {
            let all: Vec<&str> =
                bytes.iter().map(String::as_str).chain(["a"]).chain(more.iter().copied()).collect();
            let divisions = divisions(&all, &json!({"byte_fallback": true})).expect("it is known");
            divisions.longest('🦀', '🦀')
        };
        assert_eq!(tokens(&[]), 1);
        assert_eq!(tokens(&["<0x41>a"]), UNKNOWN, "a token that joins a byte");
    }

    #[test]
    fn a_part_that_is_too_long_is_refused() {
        let divisions = divisions(&["a", "aa"], &json!({})).expect("it is known");
        let outcome = divisions.parts(&"a".repeat(LONGEST_PART + 2), |_| Ok(()));
        assert!(matches!(outcome, Err(Stop::Failed(Error::Tokenizer(_)))));
    }

    #[test]
    fn models_that_do_more_are_not_divided() {
        for settings in [
            json!({"dropout": 0.5}),
            json!({"continuing_subword_prefix": "##"}),
            json!({"end_of_word_suffix": "</w>"}),
        ] {
            assert!(divisions(&["a", "b"], &settings).is_none(), "{settings}");
        }
    }
}
