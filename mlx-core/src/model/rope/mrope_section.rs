//! The axes of a head's pairs, for rows of pictures with positions in time, height and width.

/// The numbers of pairs that rotate by time, height and width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MropeSection {
    /// The axes alternate, until the pairs of height and width are used up (Bai et al., 2025, arXiv:2511.21631).
    Interleaved([usize; 3]),
    /// The pairs of time come first, the pairs of width last (Wang et al., 2024, arXiv:2409.12191).
    Sequential([usize; 3]),
}

impl MropeSection {
    /// Returns the order with other counts.
    pub(super) fn with(self, counts: [usize; 3]) -> Self {
        match self {
            Self::Interleaved(_) => Self::Interleaved(counts),
            Self::Sequential(_) => Self::Sequential(counts),
        }
    }

    /// Returns the axis of each of `pairs` pairs.
    pub(super) fn axes(self, pairs: usize) -> Vec<usize> {
        let axis = |pair: usize| match self {
            Self::Interleaved([_, height, _]) if pair % 3 == 1 && pair < 3 * height => 1,
            Self::Interleaved([_, _, width]) if pair % 3 == 2 && pair < 3 * width => 2,
            Self::Interleaved(_) => 0,
            Self::Sequential([time, height, _]) => {
                usize::from(pair >= time) + usize::from(pair >= time + height)
            }
        };
        (0..pairs).map(axis).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_in_order_follow_each_other() {
        assert_eq!(MropeSection::Sequential([2, 1, 3]).axes(6), [0, 0, 1, 2, 2, 2]);
        assert_eq!(MropeSection::Sequential([2, 1, 3]).with([1, 1, 1]).axes(3), [0, 1, 2]);
    }
}
