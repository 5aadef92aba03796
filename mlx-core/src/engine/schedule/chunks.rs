//! Where prompts are cut. Invariant: a function of the position and of the prompt before it, so that the shapes of a prompt's passes, and with
//! them its bits, never depend on time or company.

use std::ops::Range;

use super::undivided::Undivided;

/// The lengths of a device's chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Chunks {
    longest: usize,
    /// Chunks shrink with depth, so that each takes about as long as the first, but not below this.
    shortest: usize,
}

/// Several short prompts share a pass of up to this many rows. More rows take less time in all, but then the first of the prompts waits for
/// the last one: at 128, half of eight prompts of 24 tokens come as early as they would one by one, and the others earlier.
const SHARED_ROWS: usize = 128;

/// The depth at which chunks begin to shrink.
const SHALLOW: usize = 512;

impl Chunks {
    /// Where attention is one kernel, long chunks pay; where it is a chain of operations over `[heads, rows, depth]`, its time
    /// at depth would hold up everybody else.
    pub(in crate::engine) fn new(fused_attention: bool) -> Self {
        if fused_attention { Self { longest: 512, shortest: 512 } } else { Self { longest: 64, shortest: 8 } }
    }

    /// The chunk that begins at or around `position`.
    fn length_at(self, position: usize) -> usize {
        let mut length = self.longest;
        let mut depth = SHALLOW;
        while length > self.shortest && position >= depth {
            length /= 2;
            depth *= 2;
        }
        length
    }

    /// The next pass over a prompt of `length` tokens of which the first `offset` have been computed. A boundary that would lie in an undivided
    /// part lies behind it.
    pub(in crate::engine) fn next(self, offset: usize, length: usize, undivided: &Undivided) -> Range<usize> {
        let chunk = self.length_at(offset);
        let end = (offset / chunk + 1) * chunk;
        offset..undivided.around(end).map_or(end, |part| part.end).min(length)
    }

    /// The most rows that a chunk has.
    pub(in crate::engine) fn longest(self) -> usize {
        self.longest
    }

    /// The most rows of a pass over several short prompts.
    pub(in crate::engine) fn shared_rows(self) -> usize {
        self.longest.max(SHARED_ROWS)
    }

    /// The largest product of a chunk's rows and the positions they look at, in a prompt of `length` tokens.
    pub(in crate::engine) fn rows_by_depth(self, length: usize) -> usize {
        // The product grows up to the boundary where chunks become shorter.
        let product = |end: usize| self.length_at(end.saturating_sub(1)) * end;
        let chunk_boundaries =
            std::iter::successors(Some(SHALLOW), |chunk_boundary| Some(2 * chunk_boundary));
        chunk_boundaries
            .take_while(|&chunk_boundary| chunk_boundary < length)
            .map(product)
            .fold(product(length), usize::max)
    }

    /// The last chunk boundary at or before `position`: what a cached prefix may be reused up to.
    pub(in crate::engine) fn chunk_boundary(self, position: usize, undivided: &Undivided) -> usize {
        let chunk = self.length_at(position);
        let chunk_boundary = position / chunk * chunk;
        match undivided.around(chunk_boundary) {
            None => chunk_boundary,
            Some(part) if part.end <= position => part.end,
            Some(part) => self.chunk_boundary(part.start, undivided),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunks_meet_at_the_same_borders_whatever_the_prompt(
            fused: bool,
            length in 1..9000usize,
            other in 1..9000usize,
            parts in prop::collection::vec((1..700usize, 1..1200usize), 0..9),
        ) {
            let chunks = Chunks::new(fused);
            // Something, then an undivided part, and so on.
            let parts: Vec<Range<usize>> = parts.into_iter().scan(0, |end, (before, len)| {
                let start = *end + before;
                *end = start + len;
                Some(start..*end)
            }).collect();
            // A prompt has its parts as a whole.
            let whole = |length: usize| {
                let of = |length: usize, part: &Range<usize>| if part.start < length { length.max(part.end) } else { length };
                parts.iter().fold(length, of)
            };
            let (length, other) = (whole(length), whole(other));
            let of = |length: usize| Undivided::new(parts.iter().filter(|part| part.end <= length).cloned().collect());
            let chunk_boundaries = |length: usize| {
                let (mut offset, mut chunk_boundaries, undivided) = (0, vec![], of(length));
                while offset < length {
                    let range = chunks.next(offset, length, &undivided);
                    assert!(range.start == offset && range.end > offset);
                    assert!(range.len() <= chunks.longest + undivided.longest());
                    assert_eq!(undivided.around(range.end), None);
                    offset = range.end;
                    chunk_boundaries.push(offset);
                }
                chunk_boundaries
            };
            let (one, two) = (chunk_boundaries(length), chunk_boundaries(other));
            prop_assert_eq!(*one.last().expect("at least one"), length);
            let shared = length.min(other);
            let common = |chunk_boundaries: &[usize]| chunk_boundaries.iter().copied().filter(|&it| it < shared).collect::<Vec<_>>();
            prop_assert_eq!(common(&one), common(&two));
            // A prefix cut at a boundary is a whole number of chunks, and there is no longer one.
            for position in (0..=shared).rev().step_by(97) {
                let chunk_boundary = chunks.chunk_boundary(position, &of(length));
                prop_assert!(chunk_boundary <= position && of(length).around(chunk_boundary).is_none());
                prop_assert!(chunk_boundary == 0 || chunk_boundary == shared || one.contains(&chunk_boundary));
                prop_assert!(!common(&one).iter().any(|it| (chunk_boundary + 1..=position).contains(it)));
            }
        }
    }
}
