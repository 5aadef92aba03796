//! DRY: a penalty on the token that would continue a repeated sequence (p-e-w, 2024, text-generation-webui pull request 5677).
//! Sequence breakers follow llama.cpp's implementation.

use std::collections::HashMap;
use std::sync::Arc;

use super::math::power;
use super::params::Dry;
use super::penalties::window_start;
use super::pending_draw::Edits;

/// The upper limit of computed powers. Above it f32 would overflow, and all penalties would be equal.
const LARGEST_POWER: f32 = 3.0e38;

/// Returns the text that a token adds, for the search for breakers.
pub type TokenText = Arc<dyn Fn(u32) -> Vec<u8> + Send + Sync>;

/// Finds sequence breakers: texts that end repeated sequences. A breaker may span several tokens.
#[derive(Clone)]
pub struct Breakers {
    texts: Vec<Vec<u8>>,
    token_text: TokenText,
    /// The maximum number of bytes of a breaker before the token that completes it.
    reach: usize,
}

impl Breakers {
    /// Creates a search for these breakers in the text that `token_text` returns for each token.
    pub fn new(texts: &[String], token_text: TokenText) -> Self {
        let texts: Vec<Vec<u8>> = texts.iter().map(|text| text.clone().into_bytes()).collect();
        let reach = texts.iter().map(Vec::len).max().unwrap_or(0).saturating_sub(1);
        Self { texts, token_text, reach }
    }

    /// Returns true if `token` completes a breaker after the text `tail`. Appends the token's text to `tail`.
    fn completes(&self, token: u32, tail: &mut Vec<u8>) -> bool {
        if self.texts.is_empty() {
            return false;
        }
        let before = tail.len();
        tail.extend((self.token_text)(token));
        let found = self.texts.iter().any(|breaker| {
            // Only count occurrences that end in this token.
            let from = (before + 1).saturating_sub(breaker.len());
            tail[from..].windows(breaker.len()).any(|window| window == breaker)
        });
        tail.drain(..tail.len().saturating_sub(self.reach));
        found
    }

    /// Sets `tail` to the end of the text of `tokens`, as far as a breaker may reach back.
    fn rebuild_tail(&self, tokens: &[u32], tail: &mut Vec<u8>) {
        tail.clear();
        if self.texts.is_empty() {
            return;
        }
        // Collected from the end, in reverse order, until it is long enough.
        for &token in tokens.iter().rev() {
            if tail.len() >= self.reach {
                break;
            }
            tail.extend((self.token_text)(token).iter().rev());
        }
        tail.truncate(self.reach);
        tail.reverse();
    }
}

impl std::fmt::Debug for Breakers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Breakers").field("texts", &self.texts).finish_non_exhaustive()
    }
}

/// An earlier occurrence of the newest token, and the number of tokens up to it that equal the newest tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Match {
    place: usize,
    length: usize,
}

/// The positions of each token, and the matches that end at the newest token. Always equals a search from scratch.
///
/// A step costs the number of earlier occurrences of the newest token. A truncation by k tokens costs k, plus the occurrences of the
/// token that is then the newest, plus the token comparisons for its matches. These are about one per occurrence in typical text, and
/// at most the length of the history plus one per occurrence ([`matches_at_end`]).
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// The positions of each token, ascending.
    places: HashMap<u32, Vec<usize>>,
    /// In order of position.
    matches: Vec<Match>,
    /// The positions of tokens that complete a breaker, ascending.
    breaks: Vec<usize>,
    /// The end of the text, as far as a breaker may reach back.
    tail: Vec<u8>,
    /// The number of tokens read.
    length: usize,
    next: Vec<Match>,
    longest: HashMap<u32, usize>,
}

impl Repeats {
    /// Reads more tokens.
    pub(super) fn extend(&mut self, tokens: &[u32], breakers: &Breakers) {
        for &token in tokens {
            self.push(token, breakers);
        }
    }

    /// Removes the tokens from `length` on. `read` holds all tokens that were read.
    pub(super) fn truncate(&mut self, read: &[u32], length: usize, breakers: &Breakers) {
        if length >= self.length {
            return;
        }
        for token in &read[length..self.length] {
            self.places.get_mut(token).expect("every token that was read has a place").pop();
        }
        self.breaks.truncate(self.breaks.partition_point(|&place| place < length));
        self.length = length;
        breakers.rebuild_tail(&read[..length], &mut self.tail);
        self.matches.clear();
        if let Some((newest, before)) = read[..length].split_last() {
            let earlier = self.places[newest].split_last().map_or(&[][..], |(_, earlier)| earlier);
            let equal = |back: usize, place: usize| read[before.len() - back] == read[place];
            matches_at_end(before.len(), earlier, equal, &mut self.matches);
        }
    }

    fn push(&mut self, token: u32, breakers: &Breakers) {
        if breakers.completes(token, &mut self.tail) {
            self.breaks.push(self.length);
        }
        let earlier = self.places.entry(token).or_default();
        // A match extends the match that ended one position earlier. Both lists are sorted, so one pass joins them.
        self.next.clear();
        let mut before = self.matches.iter().peekable();
        for &place in earlier.iter() {
            while before.next_if(|it| it.place + 1 < place).is_some() {}
            let length = before.next_if(|it| it.place + 1 == place).map_or(0, |it| it.length) + 1;
            self.next.push(Match { place, length });
        }
        earlier.push(self.length);
        self.length += 1;
        std::mem::swap(&mut self.matches, &mut self.next);
    }

    /// Subtracts the penalty from the logit of every token that would continue a repeated sequence.
    pub(super) fn apply(&mut self, dry: &Dry, history: &[u32], row: &mut [f32]) {
        for (token, less) in self.penalties(dry, history) {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit -= less;
            }
        }
    }

    /// Adds the effect of [`Self::apply`] to the edits of each token.
    pub(super) fn add_edits(&mut self, dry: &Dry, history: &[u32], edits: &mut Edits) {
        for (token, less) in self.penalties(dry, history) {
            edits.of(token).penalty += less;
        }
    }

    /// Returns the tokens that would continue a repeated sequence, with the amounts to subtract from their logits.
    fn penalties(&mut self, dry: &Dry, history: &[u32]) -> impl Iterator<Item = (u32, f32)> {
        let start = window_start(history.len(), dry.window);
        let since_breaker = self.breaks.last().map_or(self.length, |place| self.length - 1 - place);
        self.longest.clear();
        let inside = self.matches.partition_point(|it| it.place < start);
        for &Match { place, length } in &self.matches[inside..] {
            let length = length.min(since_breaker).min(place + 1 - start);
            if length >= dry.allowed_length as usize {
                let longest = self.longest.entry(history[place + 1]).or_default();
                *longest = length.max(*longest);
            }
        }
        self.longest.iter().map(move |(&token, &length)| (token, penalty(dry, length)))
    }
}

/// Finds the matches of the token at `newest` at its `earlier` positions, which ascend. `equal(back, place)` compares the token `back`
/// positions before `newest` with the token at `place`.
///
/// This is the Z algorithm (Gusfield, 1997, section 1.3), read from the end. Positions inside a known match mirror positions at the
/// end, so only tokens before that match are compared. No token of the history is found equal twice. The number of comparisons is at
/// most the length of the history plus one for each position.
fn matches_at_end(
    newest: usize,
    earlier: &[usize],
    mut equal: impl FnMut(usize, usize) -> bool,
    matches: &mut Vec<Match>,
) {
    // The index in `matches` of the match that reaches furthest back, and its first position.
    let (mut widest, mut begin) = (0, newest + 1);
    for (number, &place) in earlier.iter().rev().enumerate() {
        let mut length = 0;
        if place >= begin {
            let mirrored: Match = matches[number - widest - 1];
            length = mirrored.length.min(place + 1 - begin);
        }
        while length <= place && equal(length, place - length) {
            length += 1;
        }
        if place + 1 - length < begin {
            (widest, begin) = (number, place + 1 - length);
        }
        matches.push(Match { place, length });
    }
    matches.reverse();
}

/// Computes `multiplier * base^(length - allowed_length)` with a finite power.
pub(super) fn penalty(dry: &Dry, length: usize) -> f32 {
    let exponent = (length - dry.allowed_length as usize).min(10_000) as u32;
    dry.multiplier * power(dry.base, exponent).min(LARGEST_POWER)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sampling::noise::{Stream, uniform};

    /// Returns the matches at the end of a history, and the number of comparisons.
    fn found(tokens: &[u32]) -> (Vec<Match>, usize) {
        let Some((newest, before)) = tokens.split_last() else { return (Vec::new(), 0) };
        let earlier: Vec<usize> = (0..before.len()).filter(|&place| before[place] == *newest).collect();
        let (mut compared, mut matches) = (0, Vec::new());
        let equal = |back: usize, place: usize| {
            compared += 1;
            tokens[before.len() - back] == tokens[place]
        };
        matches_at_end(before.len(), &earlier, equal, &mut matches);
        (matches, compared)
    }

    fn naive(tokens: &[u32]) -> Vec<Match> {
        let end = tokens.len().saturating_sub(1);
        let length =
            |place: usize| (0..=place).take_while(|back| tokens[place - back] == tokens[end - back]).count();
        (0..end).map(|place| Match { place, length: length(place) }).filter(|it| it.length > 0).collect()
    }

    proptest! {
        #[test]
        fn matches_at_the_end_are_those_of_a_search(
            tokens in prop_oneof![
                proptest::collection::vec(0..2u32, 0..60),
                proptest::collection::vec(0..4u32, 0..60),
                // Periodic texts with a flaw.
                (1..9usize, 0..60usize, 0..60usize).prop_map(|(period, length, flaw)| {
                    (0..length).map(|place| if place == flaw { 99 } else { (place % period) as u32 }).collect()
                }),
            ],
        ) {
            let (matches, compared) = found(&tokens);
            prop_assert_eq!(&matches, &naive(&tokens));
            prop_assert!(compared <= tokens.len() + matches.len(), "{compared} of {tokens:?}");
        }
    }

    /// The work is counted in requests for token texts and in token comparisons.
    #[test]
    fn a_rollback_in_a_long_history_reads_its_end_only() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        const LENGTH: u64 = 64_000;
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let text = move |token: u32| {
            counter.fetch_add(1, Ordering::Relaxed);
            token.to_string().into_bytes()
        };
        let breakers = Breakers::new(&["12345678".to_owned()], Arc::new(text));
        // As in text, few tokens are common and many are rare.
        let token = |place: u64| (uniform(99, place, Stream::Draw).powi(4) * 32_000.0) as u32;
        let tokens: Vec<u32> = (0..LENGTH).map(token).collect();
        let mut repeats = Repeats::default();
        repeats.extend(&tokens, &breakers);
        for back in [1, 16, 500] {
            let length = tokens.len() - back;
            asked.store(0, Ordering::Relaxed);
            repeats.truncate(&tokens, length, &breakers);
            repeats.extend(&tokens[length..], &breakers);
            let asked = asked.load(Ordering::Relaxed);
            assert!(asked <= back + breakers.reach, "{back} back: {asked} texts");
            let (matches, compared) = found(&tokens[..length]);
            assert!(compared <= 3 * matches.len() + 16, "{back} back: {compared} comparisons");
        }
        let mut straight = Repeats::default();
        straight.extend(&tokens, &breakers);
        assert_eq!((repeats.matches, repeats.breaks), (straight.matches, straight.breaks));
    }
}
