//! The heads and numbers of a layer that one of several machines has.

use std::ops::Range;

use crate::weights::AxisSelection;

/// Returns the share of each of `ranks` machines, if `count` divides evenly.
pub(super) fn divide_evenly(count: usize, ranks: usize) -> Option<usize> {
    count.is_multiple_of(ranks).then_some(count / ranks)
}

/// Returns the number of key heads per machine, if they divide evenly. Query or value heads share key heads. If there are fewer key
/// heads than machines, each is on all machines with a part of its group, as in Megatron and vLLM.
pub(super) fn key_heads(count: usize, ranks: usize) -> Option<usize> {
    divide_evenly(count, ranks).or_else(|| divide_evenly(ranks, count).map(|_| 1))
}

/// The rank of one machine among several.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rank {
    pub(super) rank: usize,
    /// The number of machines.
    pub(super) ranks: usize,
}

impl Rank {
    /// Returns an equal share of each of `blocks` equal blocks.
    pub(super) fn equal_shards(self, blocks: usize) -> AxisSelection {
        let start = |block: usize| block * self.ranks + self.rank;
        AxisSelection {
            of: blocks * self.ranks,
            ranges: (0..blocks).map(|it| start(it)..start(it) + 1).collect(),
        }
    }

    /// Returns this machine's heads of each block of heads. A block is a pair: the number of heads and the size of one.
    pub(super) fn heads(self, blocks: &[(usize, usize)]) -> AxisSelection {
        let (mut ranges, mut of) = (Vec::with_capacity(blocks.len()), 0);
        for &(count, size) in blocks {
            let own = self.head_range(count);
            ranges.push(of + own.start * size..of + own.end * size);
            of += count * size;
        }
        AxisSelection { of, ranges }
    }

    /// Like [`heads`](Self::heads), for the layout in which each of `keys` key heads has separate blocks. A block has one head, which all
    /// machines with a part of its group share, or the heads of the group.
    pub(super) fn by_key_head(self, keys: usize, blocks: &[(usize, usize)]) -> AxisSelection {
        let copies = (self.ranks / keys.max(1)).max(1);
        let inside = Self { rank: self.rank % copies, ranks: copies }.heads(blocks);
        if copies == 1 {
            return self.heads(&[(keys, inside.of)]);
        }
        let first = self.head_range(keys).start * inside.of;
        let ranges = inside.ranges.iter().map(|range| first + range.start..first + range.end);
        AxisSelection { of: keys * inside.of, ranges: ranges.collect() }
    }

    /// Returns the range of this machine's heads.
    pub(super) fn head_range(self, count: usize) -> Range<usize> {
        let first = self.rank * count / self.ranks;
        first..first + (count / self.ranks).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(places: &AxisSelection) -> Vec<usize> {
        places.ranges.iter().cloned().flatten().collect()
    }

    #[test]
    fn machines_have_their_heads_of_each_block() {
        let rank = Rank { rank: 1, ranks: 2 };
        // Four queries of 2 numbers, two keys, two values.
        let places = rank.heads(&[(4, 2), (2, 2), (2, 2)]);
        assert_eq!((places.of, numbers(&places)), (16, vec![4, 5, 6, 7, 10, 11, 14, 15]));
        assert_eq!(rank.equal_shards(2), AxisSelection { of: 4, ranges: vec![1..2, 3..4] });
        // A key, two values and their gates for each of two key heads.
        let places = rank.by_key_head(2, &[(1, 3), (2, 1), (2, 1)]);
        assert_eq!((places.of, numbers(&places)), (14, (7..14).collect()));
    }

    #[test]
    fn a_key_head_is_on_every_machine_with_a_part_of_its_group() {
        for (keys, group, ranks) in
            [(1, 2, 2), (1, 4, 4), (2, 2, 4), (2, 4, 4), (2, 4, 8), (4, 3, 2), (4, 1, 4)]
        {
            assert_eq!(key_heads(keys, ranks), Some((keys / ranks).max(1)));
            let mut queries = Vec::new();
            for rank in (0..ranks).map(|rank| Rank { rank, ranks }) {
                let places = rank.heads(&[(keys * group, 1), (keys, 1)]);
                let (own, shared) = (places.ranges[0].clone(), places.ranges[1].clone());
                let read = |query: usize| keys * group + query / group;
                assert!(own.clone().all(|query| shared.contains(&read(query))), "{rank:?}: {places:?}");
                assert_eq!(shared.len(), own.len().div_ceil(group), "{rank:?}: {places:?}");
                // The layout by key head has the same heads.
                let by_head = rank.by_key_head(keys, &[(group, 1), (1, 1)]);
                let query = |query: usize| query / group * (group + 1) + query % group;
                let mut expected: Vec<usize> = own.clone().map(query).collect();
                expected.extend(shared.map(|key| (key - keys * group) * (group + 1) + group));
                expected.sort_unstable();
                assert_eq!((by_head.of, numbers(&by_head)), (keys * (group + 1), expected));
                queries.extend(own);
            }
            assert_eq!(queries, (0..keys * group).collect::<Vec<_>>());
        }
        assert_eq!(key_heads(2, 3), None);
        assert_eq!(key_heads(4, 6), None);
        assert_eq!(key_heads(0, 2), Some(0));
    }
}
