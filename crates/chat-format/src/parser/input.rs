//! The unparsed input: text as bytes, with encoded special tokens.

use crate::format::{Pattern, SPECIAL, SPECIAL_BYTES};

/// The number of committed bytes after which they are removed from memory.
const COMPACT_AT: usize = 4096;
/// The size of a chunk of text in bytes.
const PIECE: usize = 1024;
/// The number of read bytes that can be put back.
const MAX_PUT_BACK: usize = 1024;

/// The text that a parser reads. Bytes that were read can become plain text until they are committed.
#[derive(Debug, Clone, Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    /// The end of the committed bytes.
    committed: usize,
    /// The end of the bytes that were read.
    at: usize,
    /// True if no more input follows.
    pub(super) is_ended: bool,
    /// True if no more input follows, although the model did not end the output.
    pub(super) is_cut: bool,
}

/// The result of matching a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    Yes,
    No,
    /// There is not enough text to decide.
    Maybe,
}

/// The result of a parser's step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    /// The step can be repeated.
    Go,
    /// More text is needed.
    Wait,
    /// The parser has read its whole item.
    Done,
    /// The text is invalid, with the reason.
    Fail(&'static str),
}

impl Input {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let spent = self.committed.saturating_sub(MAX_PUT_BACK);
        if spent > COMPACT_AT && spent > self.bytes.len() / 2 {
            self.bytes.drain(..spent);
            self.at -= spent;
            self.committed -= spent;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the bytes that have not been read.
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

    /// Marks the last `bytes` bytes, at most [`MAX_PUT_BACK`], as unread.
    pub(super) fn put_back(&mut self, bytes: usize) {
        self.at = self.at.saturating_sub(bytes);
        self.committed = self.committed.min(self.at);
    }

    /// Returns the number of bytes that were read but not committed.
    pub(super) fn uncommitted(&self) -> usize {
        self.at - self.committed
    }

    /// Commits the bytes that were read.
    pub(super) fn commit(&mut self) {
        self.committed = self.at;
    }

    /// Returns the bytes that were read but not committed, and commits them.
    pub(super) fn give_up(&mut self) -> Vec<u8> {
        let read = self.bytes[self.committed..self.at].to_vec();
        self.commit();
        read
    }

    /// Reads whitespace. Returns the next byte, if there is one.
    pub(super) fn skip_space(&mut self) -> Option<u8> {
        let space = self.rest().iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.advance(space);
        self.peek()
    }

    /// Checks if the unread bytes begin with the pattern.
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

    /// Checks if the unread bytes begin with any of these patterns. Also returns the length of the longest match.
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

    /// Searches for the first of these patterns. Returns the number of bytes before it, and its index. If there is
    /// none, it returns the number of bytes that cannot be part of one. Of two patterns at the same position, the
    /// longer one wins.
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

/// Counts inspected bytes, for tests.
#[cfg(test)]
fn note_work(bytes: usize) {
    WORK.with(|work| work.set(work.get() + bytes));
}

#[cfg(not(test))]
fn note_work(_: usize) {}

#[cfg(test)]
thread_local! {
    /// The number of bytes that parsers on this thread have inspected.
    pub(super) static WORK: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Returns true if a character or a special token can begin with this byte.
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

/// Returns the text without special tokens.
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

/// Matches the patterns of a literal in order, with any whitespace between them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LiteralReader {
    read: usize,
}

impl LiteralReader {
    /// Returns true if no pattern was matched yet.
    pub(super) fn is_new(self) -> bool {
        self.read == 0
    }

    pub(super) fn step(&mut self, input: &mut Input, literal: &[Pattern]) -> Flow {
        let Some(pattern) = literal.get(self.read) else { return Flow::Done };
        if input.skip_space().is_none() {
            // A model may end its output instead of writing an end marker.
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
            Seen::No => Flow::Fail("missing marker"),
        }
    }
}

impl Flow {
    /// Continues with `next` if this is `Done`.
    pub(super) fn then(self, next: impl FnOnce() -> Self) -> Self {
        if self == Self::Done { next() } else { self }
    }
}
