//! Chooses the layers of each machine. Invariant: pure and deterministic.

use std::ops::Range;

/// Divides layers of these sizes in bytes among machines with these budgets, in order. It minimizes the load of the fullest machine, then
/// balances the others. The first machine also has `ends` bytes, the embedding and the head. `may_begin` is true if a machine's layers may
/// begin with a layer, `is_valid_range` if a machine may have just these layers. Returns `None` if no division exists, for example with fewer
/// layers than machines.
pub(super) fn split(
    layers: &[u64],
    ends: u64,
    budgets: &[u64],
    may_begin: impl Fn(usize) -> bool,
    is_valid_range: impl Fn(&Range<usize>) -> bool,
) -> Option<Vec<Range<usize>>> {
    let mut sums = vec![0; layers.len() + 1];
    for (layer, bytes) in layers.iter().enumerate() {
        sums[layer + 1] = sums[layer] + bytes;
    }
    // The load of a machine with these layers; `None` if it may not have them.
    let fullness = |rank: usize, range: &Range<usize>| {
        let bytes = sums[range.end] - sums[range.start] + if rank == 0 { ends } else { 0 };
        (may_begin(range.start) && is_valid_range(range)).then(|| bytes as f64 / budgets[rank].max(1) as f64)
    };
    let count = layers.len();
    let (most, _) = cheapest(count, budgets.len(), fullness, f64::max)?;
    // The maximum does not balance the other machines if the ends already fill the first one. So the squares decide.
    let square = |rank: usize, range: &Range<usize>| {
        fullness(rank, range).filter(|full| *full <= most).map(|full| full * full * budgets[rank] as f64)
    };
    cheapest(count, budgets.len(), square, |one, other| one + other).map(|(_, ranges)| ranges)
}

/// Returns the lowest combined cost of dividing `count` layers among `machines`, and the ranges. A range without a cost is not allowed.
fn cheapest(
    count: usize,
    machines: usize,
    cost: impl Fn(usize, &Range<usize>) -> Option<f64>,
    together: impl Fn(f64, f64) -> f64,
) -> Option<(f64, Vec<Range<usize>>)> {
    // For each end: the lowest cost of the layers before it on the machines so far, and the first layer of the last machine.
    let mut best: Vec<Option<(f64, usize)>> = vec![None; count + 1];
    best[0] = Some((0.0, 0));
    let mut begins: Vec<Vec<usize>> = Vec::new();
    for rank in 0..machines {
        let cheapest_until = |end: usize| {
            let ways = (0..end)
                .filter_map(|begin| Some((together(best[begin]?.0, cost(rank, &(begin..end))?), begin)));
            ways.reduce(|one, other| if other.0 < one.0 { other } else { one })
        };
        best = (0..=count).map(cheapest_until).collect();
        begins.push(best.iter().map(|it| it.map_or(0, |it| it.1)).collect());
    }
    let (lowest, _) = best[count]?;
    let mut ranges = Vec::new();
    let mut end = count;
    for begin in begins.iter().rev() {
        ranges.push(begin[end]..end);
        end = begin[end];
    }
    ranges.reverse();
    Some((lowest, ranges))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(layers: &[u64], ends: u64, budgets: &[u64]) -> Option<Vec<Range<usize>>> {
        split(layers, ends, budgets, |_| true, |_| true)
    }

    #[test]
    fn machines_are_filled_evenly() {
        assert_eq!(plain(&[10; 8], 0, &[1, 1]), Some(vec![0..4, 4..8]));
        // The embedding and the head are as large as two layers.
        assert_eq!(plain(&[10; 8], 20, &[1, 1]), Some(vec![0..3, 3..8]));
        assert_eq!(plain(&[10; 9], 0, &[2, 1]), Some(vec![0..6, 6..9]));
        assert_eq!(plain(&[10; 4], 1000, &[1, 1, 1, 1]), Some(vec![0..1, 1..2, 2..3, 3..4]));
    }

    #[test]
    fn the_others_share_evenly_what_a_full_first_machine_leaves() {
        // The embedding and the head exceed the share of any other machine.
        assert_eq!(plain(&[10; 13], 200, &[1; 4]), Some(vec![0..1, 1..5, 5..9, 9..13]));
        assert_eq!(plain(&[10; 13], 200, &[4, 1, 2, 1]), Some(vec![0..1, 1..4, 4..10, 10..13]));
    }

    #[test]
    fn what_cannot_be_divided_is_not() {
        assert_eq!(plain(&[10; 3], 0, &[1; 4]), None);
        assert_eq!(split(&[10; 4], 0, &[1, 1], |first| first == 0, |_| true), None);
        assert_eq!(split(&[10; 4], 0, &[1, 1], |first| first != 2, |_| true), Some(vec![0..1, 1..4]));
        assert_eq!(split(&[10; 4], 0, &[1, 1], |_| true, |range| range.contains(&2)), None);
    }

    #[test]
    fn every_layer_has_one_machine() {
        for machines in 1..6 {
            for layers in machines..12 {
                let sizes: Vec<u64> = (0..layers as u64).map(|layer| 1 + layer * 7 % 5).collect();
                let budgets: Vec<u64> = (0..machines as u64).map(|rank| 1 + rank % 3).collect();
                let ranges = plain(&sizes, 3, &budgets).expect("there are enough layers");
                assert_eq!(ranges.len(), machines);
                let all: Vec<usize> = ranges.into_iter().flatten().collect();
                assert_eq!(all, (0..layers).collect::<Vec<_>>());
            }
        }
    }
}
