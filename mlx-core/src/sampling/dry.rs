//! DRY: a penalty on the token that would continue a sequence that has been there before (p-e-w, 2024,
//! text-generation-webui pull request 5677; llama.cpp's implementation is the reference for breakers).

use std::collections::HashMap;
use std::sync::Arc;

use super::math::power;
use super::params::Dry;
use super::penalties::window_start;

/// The largest power that is computed; beyond it f32 would overflow and all penalties be one.
const LARGEST_POWER: f32 = 3.0e38;

/// What a token adds to the text, to find breakers in.
pub type TokenText = Arc<dyn Fn(u32) -> Vec<u8> + Send + Sync>;

/// Finds the texts that no repeated sequence reaches across, also where they span several tokens.
#[derive(Clone)]
pub struct Breakers {
    texts: Vec<Vec<u8>>,
    token_text: TokenText,
    /// How much of the text before a token can be part of a breaker that the token completes.
    reach: usize,
}

impl Breakers {
    /// Breakers in the text that `token_text` gives for each token.
    pub fn new(texts: &[String], token_text: TokenText) -> Self {
        let texts: Vec<Vec<u8>> = texts.iter().map(|text| text.clone().into_bytes()).collect();
        let reach = texts.iter().map(Vec::len).max().unwrap_or(0).saturating_sub(1);
        Self { texts, token_text, reach }
    }

    /// Whether `token` completes a breaker, after the text `tail`; `tail` goes on by the token's text.
    fn completes(&self, token: u32, tail: &mut Vec<u8>) -> bool {
        if self.texts.is_empty() {
            return false;
        }
        let before = tail.len();
        tail.extend((self.token_text)(token));
        let found = self.texts.iter().any(|breaker| {
            // Only occurrences that end inside this token are its own.
            let from = (before + 1).saturating_sub(breaker.len());
            tail[from..].windows(breaker.len()).any(|window| window == breaker)
        });
        tail.drain(..tail.len().saturating_sub(self.reach));
        found
    }
}

impl std::fmt::Debug for Breakers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Breakers").field("texts", &self.texts).finish_non_exhaustive()
    }
}

/// An earlier place where the newest token stands, and how many tokens up to it equal the newest ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Match {
    place: usize,
    length: usize,
}

/// Where each token has been, and the matches that end at the newest one. Equals a search from scratch at
/// all times. A step costs as much as the newest token has earlier occurrences.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    places: HashMap<u32, Vec<usize>>,
    /// By rising place.
    matches: Vec<Match>,
    /// Tokens since the last one that completed a breaker.
    since_breaker: usize,
    /// The end of the text, as far as a breaker may reach back.
    tail: Vec<u8>,
    end: usize,
    next: Vec<Match>,
    longest: HashMap<u32, usize>,
}

impl Repeats {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes the tokens from the last one seen to the end of `history`.
    pub(super) fn extend(&mut self, history: &[u32], breakers: &Breakers) {
        for (place, &token) in history.iter().enumerate().skip(self.end) {
            self.push(token, place, breakers);
        }
        self.end = history.len();
    }

    fn push(&mut self, token: u32, place: usize, breakers: &Breakers) {
        if breakers.completes(token, &mut self.tail) {
            self.since_breaker = 0;
        } else {
            self.since_breaker += 1;
        }
        let earlier = self.places.entry(token).or_default();
        // A match goes on from the one that ended a place before it; both lists rise, so one walk joins them.
        self.next.clear();
        let mut before = self.matches.iter().peekable();
        for &place in earlier.iter() {
            while before.next_if(|it| it.place + 1 < place).is_some() {}
            let length = before.next_if(|it| it.place + 1 == place).map_or(0, |it| it.length) + 1;
            self.next.push(Match { place, length });
        }
        earlier.push(place);
        std::mem::swap(&mut self.matches, &mut self.next);
    }

    /// Takes the penalty from the logit of every token that would continue a repeated sequence.
    pub(super) fn apply(&mut self, dry: &Dry, history: &[u32], row: &mut [f32]) {
        let start = window_start(history.len(), dry.window);
        self.longest.clear();
        let inside = self.matches.partition_point(|it| it.place < start);
        for &Match { place, length } in &self.matches[inside..] {
            let length = length.min(self.since_breaker).min(place + 1 - start);
            if length >= dry.allowed_length as usize {
                let longest = self.longest.entry(history[place + 1]).or_default();
                *longest = length.max(*longest);
            }
        }
        for (&token, &length) in &self.longest {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit -= penalty(dry, length);
            }
        }
    }
}

/// `multiplier * base^(length - allowed_length)`, the power kept finite.
pub(super) fn penalty(dry: &Dry, length: usize) -> f32 {
    let exponent = (length - dry.allowed_length as usize).min(10_000) as u32;
    dry.multiplier * power(dry.base, exponent).min(LARGEST_POWER)
}
