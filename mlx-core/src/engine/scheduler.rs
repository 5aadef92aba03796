//! Decides what to compute next. Invariant: pure; it sees lengths, never an array or a token.

use std::ops::Range;

/// Prompts run in chunks that start at multiples of this many positions, so that the shapes of a prompt's
/// passes depend on the prompt alone.
pub(super) const CHUNK: usize = 512;

/// The next pass for one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Work {
    /// Run these positions to fill the cache; more are left.
    Fill(Range<usize>),
    /// Run these positions, the last there are, and draw a token.
    Draw(Range<usize>),
}

/// What to do for a sequence of `length` tokens of which the cache has seen `offset`; at least one is unseen.
pub(super) fn plan(length: usize, offset: usize) -> Work {
    let end = ((offset / CHUNK + 1) * CHUNK).min(length);
    if end == length { Work::Draw(offset..end) } else { Work::Fill(offset..end) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunks_are_aligned_and_cover_the_history_once(length in 1..5000usize, seen in 0..5000usize) {
            let mut offset = seen % length;
            loop {
                let (range, last) = match plan(length, offset) {
                    Work::Fill(range) => (range, false),
                    Work::Draw(range) => (range, true),
                };
                prop_assert_eq!(range.start, offset);
                prop_assert!(!range.is_empty() && range.len() <= CHUNK);
                prop_assert!(last || range.end.is_multiple_of(CHUNK));
                offset = range.end;
                if last { break; }
            }
            prop_assert_eq!(offset, length);
        }
    }
}
