//! What a parser has not decided yet: text as bytes, and special tokens among it.

use crate::format::{Pattern, SPECIAL, SPECIAL_BYTES};

/// Bytes that may be removed from memory when there are so many.
const SPENT: usize = 4096;
/// Bytes of a chunk of text.
const PIECE: usize = 1024;
/// Bytes that were read and may be put back.
const KEPT: usize = 1024;

/// Text that a parser reads. What it has read stays until it is committed, so that it can become text again.
#[derive(Debug, Clone, Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    /// Up to here everything is decided.
    committed: usize,
    /// Up to here everything is read.
    at: usize,
    /// Nothing more will come.
    pub(super) is_ended: bool,
    /// The same, but not since the model has ended.
    pub(super) is_cut: bool,
}

/// Whether the text goes on with a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    Yes,
    No,
    /// There is too little text to know.
    Maybe,
}

/// What a reader has to say after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    /// There may be more to do.
    Go,
    /// More text is needed.
    Wait,
    /// It has read all that is its own.
    Done,
    /// The text is not what was expected, with the reason.
    Fail(&'static str),
}

impl Input {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let spent = self.committed.saturating_sub(KEPT);
        if spent > SPENT && spent > self.bytes.len() / 2 {
            self.bytes.drain(..spent);
            self.at -= spent;
            self.committed -= spent;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// What has not been read.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    pub(super) fn advance(&mut self, bytes: usize) {
        note_work(bytes);
        self.at += bytes;
    }

    /// So many bytes that were read last, at most [`KEPT`], are to be read again.
    pub(super) fn put_back(&mut self, bytes: usize) {
        self.at = self.at.saturating_sub(bytes);
        self.committed = self.committed.min(self.at);
    }

    /// The number of bytes that were read and not committed.
    pub(super) fn uncommitted(&self) -> usize {
        self.at - self.committed
    }

    /// What was read has its meaning.
    pub(super) fn commit(&mut self) {
        self.committed = self.at;
    }

    /// What was read and not committed; it is committed now.
    pub(super) fn give_up(&mut self) -> Vec<u8> {
        let read = self.bytes[self.committed..self.at].to_vec();
        self.commit();
        read
    }

    /// Reads white space; the next byte, if there is one.
    pub(super) fn skip_space(&mut self) -> Option<u8> {
        let space = self.rest().iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.advance(space);
        self.peek()
    }

    /// Whether the rest begins with the pattern.
    pub(super) fn sees(&self, pattern: &[u8]) -> Seen {
        let rest = self.rest();
        if rest.starts_with(pattern) {
            Seen::Yes
        } else if !self.is_ended && pattern.starts_with(rest) {
            Seen::Maybe
        } else {
            Seen::No
        }
    }

    /// Checks if the rest begins with any of these patterns. Also returns the length of the longest match.
    pub(super) fn sees_any<'a>(&self, patterns: impl Iterator<Item = &'a Pattern>) -> (Seen, usize) {
        let (mut seen, mut length) = (Seen::No, 0);
        for pattern in patterns {
            match self.sees(pattern) {
                Seen::Yes => length = length.max(pattern.len()),
                Seen::Maybe => seen = Seen::Maybe,
                Seen::No => {}
            }
        }
        (if length > 0 && seen == Seen::No { Seen::Yes } else { seen }, length)
    }

    /// Looks for the first of these patterns: the bytes before it, and which it is. Without one, the bytes that certainly
    /// belong to none. Where two begin at one place, the longer one counts.
    pub(super) fn find(&self, patterns: &[&Pattern]) -> (usize, Option<usize>) {
        let rest = self.rest();
        for start in 0..rest.len() {
            if !is_first(rest[start]) {
                continue;
            }
            let here = &rest[start..];
            let hits = patterns.iter().enumerate().filter(|(_, pattern)| here.starts_with(pattern));
            let hit = hits.max_by_key(|(_, pattern)| pattern.len());
            let may_be = |pattern: &&&Pattern| {
                let is_longer = hit.is_none_or(|(_, hit)| pattern.len() > hit.len());
                is_longer && here.len() < pattern.len() && pattern.starts_with(here)
            };
            if !self.is_ended && patterns.iter().any(|pattern| may_be(&pattern)) {
                note_work(start);
                return (start, None);
            }
            if let Some((which, _)) = hit {
                note_work(start);
                return (start, Some(which));
            }
        }
        note_work(rest.len());
        (rest.len(), None)
    }
}

/// Counts the bytes that are looked at, for tests.
#[cfg(test)]
fn note_work(bytes: usize) {
    WORK.with(|work| work.set(work.get() + bytes));
}

#[cfg(not(test))]
fn note_work(_: usize) {}

#[cfg(test)]
thread_local! {
    /// The bytes that parsers of this thread have looked at.
    pub(super) static WORK: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Whether a character or a special token begins with this byte.
fn is_first(byte: u8) -> bool {
    byte & 0xc0 != 0x80
}

/// Splits a text into chunks at character boundaries. They are short, so reading one twice is cheap.
pub(super) fn pieces(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let next = bytes.iter().skip(PIECE).position(|byte| is_first(*byte));
        let (piece, rest) = bytes.split_at(next.map_or(bytes.len(), |next| PIECE + next));
        bytes = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Text without the special tokens among it.
pub(super) fn text(bytes: &[u8]) -> String {
    if !bytes.contains(&SPECIAL) {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let (mut clean, mut rest) = (Vec::with_capacity(bytes.len()), bytes);
    while let Some((&first, after)) = rest.split_first() {
        if first == SPECIAL {
            rest = rest.get(SPECIAL_BYTES..).unwrap_or_default();
        } else {
            clean.push(first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&clean).into_owned()
}

/// Reads the patterns of a literal one after the other, with any white space between them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LiteralReader {
    read: usize,
}

impl LiteralReader {
    /// Whether none of the patterns was read.
    pub(super) fn is_new(self) -> bool {
        self.read == 0
    }

    pub(super) fn step(&mut self, input: &mut Input, literal: &[Pattern]) -> Flow {
        let Some(pattern) = literal.get(self.read) else { return Flow::Done };
        if input.skip_space().is_none() {
            // A model may end where a marker would end.
            let is_whole = input.is_ended && !input.is_cut && self.read == 0;
            return if is_whole { Flow::Done } else { Flow::Wait };
        }
        match input.sees(pattern) {
            Seen::Yes => {
                input.advance(pattern.len());
                self.read += 1;
                if self.read == literal.len() { Flow::Done } else { Flow::Go }
            }
            Seen::Maybe => Flow::Wait,
            Seen::No => Flow::Fail("a marker is missing"),
        }
    }
}

impl Flow {
    /// What follows if this is done.
    pub(super) fn then(self, next: impl FnOnce() -> Self) -> Self {
        if self == Self::Done { next() } else { self }
    }
}
