//! Chunk boundaries of prompts. Invariant: they depend only on the position and the prompt before it. So the shapes and the bits of a
//! prompt's passes never depend on timing or on other sequences.

use std::ops::Range;

use super::undivided::Undivided;
use crate::backend::AttentionKernels;

/// The chunk lengths of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Chunks {
    longest: usize,
    /// The minimum length of a chunk; chunks become shorter with depth.
    shortest: usize,
    /// The depth at which chunks begin to shrink.
    shallow: usize,
}

/// The maximum number of rows of a pass that several short prompts share. More rows take less time in total, but the first prompt waits for
/// the last. At 128, half of eight prompts of 24 tokens finish as early as they would one by one, and the others earlier.
const SHARED_ROWS: usize = 128;

/// The score bytes of a chunk at which chunks begin to shrink on a GPU.
const SCORES: u64 = 512 << 20;

impl Chunks {
    /// Chunks on a CPU, where a long chunk at depth would delay all other sequences.
    pub(in crate::engine) const ON_A_CPU: Self = Self { longest: 64, shortest: 8, shallow: 512 };

    /// Returns the lengths for a model that writes `row_scores` bytes of scores per row and position. On a GPU, long chunks are faster, and
    /// they shrink only where their scores would take too much memory.
    pub(in crate::engine) fn new(kernels: AttentionKernels, row_scores: u64) -> Self {
        if kernels == AttentionKernels::None {
            return Self::ON_A_CPU;
        }
        let longest = 512;
        let shallow = match row_scores * longest as u64 {
            0 => usize::MAX,
            bytes => 1 << (SCORES / bytes).max(longest as u64).ilog2(),
        };
        Self { longest, shortest: 32, shallow }
    }

    /// Returns the length of the chunk that contains `position`.
    fn length_at(self, position: usize) -> usize {
        let mut length = self.longest;
        let mut depth = self.shallow;
        while length > self.shortest && position >= depth {
            length /= 2;
            depth *= 2;
        }
        length
    }

    /// Returns the next chunk of a prompt of `length` tokens, of which the first `offset` have been computed. A boundary within an
    /// undivided range moves to the end of the range.
    pub(in crate::engine) fn next(self, offset: usize, length: usize, undivided: &Undivided) -> Range<usize> {
        let chunk = self.length_at(offset);
        let end = (offset / chunk + 1) * chunk;
        offset..undivided.around(end).map_or(end, |part| part.end).min(length)
    }

    /// Returns the maximum number of rows of a chunk.
    pub(in crate::engine) fn longest(self) -> usize {
        self.longest
    }

    /// Returns the maximum number of rows of a pass over several short prompts.
    pub(in crate::engine) fn shared_rows(self) -> usize {
        self.longest.max(SHARED_ROWS)
    }

    /// Returns pairs of rows and depth for a prompt of `length` tokens: for each chunk length, the deepest chunk.
    pub(in crate::engine) fn deepest(self, length: usize) -> impl Iterator<Item = (usize, usize)> {
        let boundaries = std::iter::successors(Some(self.shallow), |boundary| boundary.checked_mul(2));
        let ends = boundaries.take_while(move |&boundary| boundary < length).chain([length]);
        ends.map(move |end| (self.length_at(end.saturating_sub(1)), end))
    }

    /// Returns the last chunk boundary at or before `position`, up to which a cached prefix may be reused.
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
            shape in 0..3usize,
            length in 1..9000usize,
            other in 1..9000usize,
            parts in prop::collection::vec((1..700usize, 1..1200usize), 0..9),
        ) {
            let chunks = [
                Chunks::ON_A_CPU,
                Chunks::new(AttentionKernels::Metal, 0),
                Chunks::new(AttentionKernels::Metal, 2048),
            ][shape];
            // Each undivided range follows some other tokens.
            let parts: Vec<Range<usize>> = parts.into_iter().scan(0, |end, (before, len)| {
                let start = *end + before;
                *end = start + len;
                Some(start..*end)
            }).collect();
            // A prompt contains its undivided ranges as a whole.
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
            // A prefix up to a boundary consists of whole chunks, and no longer prefix does.
            for position in (0..=shared).rev().step_by(97) {
                let chunk_boundary = chunks.chunk_boundary(position, &of(length));
                prop_assert!(chunk_boundary <= position && of(length).around(chunk_boundary).is_none());
                prop_assert!(chunk_boundary == 0 || chunk_boundary == shared || one.contains(&chunk_boundary));
                prop_assert!(!common(&one).iter().any(|it| (chunk_boundary + 1..=position).contains(it)));
            }
        }
    }
}
