//! Which layers each machine gets. Invariant: pure, and the same answer for the same numbers.

use std::ops::Range;

/// Divides layers of these bytes among machines with these budgets, in their order, so that the fullest machine is as empty as it can be.
/// The first one also has `ends` bytes. `may_begin` says whether a machine's layers may begin with a layer, `is_enough` whether a machine
/// may have just these. `None` if there is no such way, as where there are fewer layers than machines.
pub(super) fn split(
    layers: &[u64],
    ends: u64,
    budgets: &[u64],
    may_begin: impl Fn(usize) -> bool,
    is_enough: impl Fn(&Range<usize>) -> bool,
) -> Option<Vec<Range<usize>>> {
    let count = layers.len();
    let mut sums = vec![0; count + 1];
    for (layer, bytes) in layers.iter().enumerate() {
        sums[layer + 1] = sums[layer] + bytes;
    }
    // How full the fullest machine is if the first machines have the layers before an end, and where the last of them begins.
    let mut best: Vec<Option<(f64, usize)>> = vec![None; count + 1];
    let mut begins: Vec<Vec<usize>> = Vec::new();
    for (rank, budget) in budgets.iter().enumerate() {
        let mut next: Vec<Option<(f64, usize)>> = vec![None; count + 1];
        for end in 1..=count {
            for begin in 0..end {
                let before = match rank {
                    0 if begin == 0 => Some(0.0),
                    0 => None,
                    _ => best[begin].map(|it| it.0),
                };
                let Some(before) = before.filter(|_| may_begin(begin) && is_enough(&(begin..end))) else {
                    continue;
                };
                let bytes = sums[end] - sums[begin] + if rank == 0 { ends } else { 0 };
                let full = before.max(bytes as f64 / (*budget).max(1) as f64);
                if next[end].is_none_or(|it| full < it.0) {
                    next[end] = Some((full, begin));
                }
            }
        }
        begins.push(next.iter().map(|it| it.map_or(0, |it| it.1)).collect());
        best = next;
    }
    best[count]?;
    let mut ranges = Vec::new();
    let mut end = count;
    for begin in begins.iter().rev() {
        ranges.push(begin[end]..end);
        end = begin[end];
    }
    ranges.reverse();
    Some(ranges)
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
        // The embedding and the head take the place of two layers.
        assert_eq!(plain(&[10; 8], 20, &[1, 1]), Some(vec![0..3, 3..8]));
        assert_eq!(plain(&[10; 9], 0, &[2, 1]), Some(vec![0..6, 6..9]));
        assert_eq!(plain(&[10; 4], 1000, &[1, 1, 1, 1]), Some(vec![0..1, 1..2, 2..3, 3..4]));
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
