//! The stages that narrow a row down before the draw. All look at the untempered row.

use std::cmp::Ordering;

use super::math::{exp, largest, mass};
use super::params::Xtc;

/// A token that may still be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) logit: f32,
}

/// How many candidates are sorted before more are looked at, and how fast that grows.
const FIRST: usize = 256;
const GROWTH: usize = 8;
/// Values whose largest one stands for all of them when the head of a row is looked for.
const BLOCK: usize = 64;

/// Falling logit, then rising id: the one order of candidates, so that ties have one answer.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that sorting asks for")]
fn by_rank(left: &Candidate, right: &Candidate) -> Ordering {
    right.logit.total_cmp(&left.logit).then(left.id.cmp(&right.id))
}

/// Fills `candidates` with all tokens of at least `floor` and more than minus infinity, by rising id.
pub(super) fn above(row: &[f32], floor: f32, candidates: &mut Vec<Candidate>) {
    candidates.clear();
    for (block, first) in row.chunks(BLOCK).zip((0..).step_by(BLOCK)) {
        if largest(block) >= floor {
            let kept =
                (first..).zip(block).filter(|&(_, &logit)| logit >= floor && logit > f32::NEG_INFINITY);
            candidates.extend(kept.map(|(id, &logit)| Candidate { id, logit }));
        }
    }
}

/// Fills `candidates` with the `count` likeliest tokens, in falling order.
pub(super) fn head(row: &[f32], count: usize, candidates: &mut Vec<Candidate>, peaks: &mut Vec<f32>) {
    peaks.clear();
    peaks.extend(row.chunks(BLOCK).map(largest));
    let floor = if (1..peaks.len()).contains(&count) {
        // As many blocks as asked for reach this peak, so at least as many tokens do.
        *peaks.select_nth_unstable_by(count - 1, |left, right| right.total_cmp(left)).1
    } else {
        f32::NEG_INFINITY
    };
    above(row, floor, candidates);
    if count < candidates.len() {
        candidates.select_nth_unstable_by(count, by_rank);
        candidates.truncate(count);
    }
    candidates.sort_unstable_by(by_rank);
}

/// top-p (Holtzman et al., 2019, arXiv:1904.09751) of a whole row: the fewest likeliest tokens whose share of the
/// mass reaches `p`, without sorting the vocabulary.
pub(super) fn nucleus(row: &[f32], p: f32, candidates: &mut Vec<Candidate>, peaks: &mut Vec<f32>) {
    let top = largest(row);
    let target = f64::from(p) * mass(row, top);
    let mut count = FIRST;
    loop {
        head(row, count.min(row.len()), candidates, peaks);
        if cut_at_mass(candidates, target, by_rank, |it| it.logit - top) || count >= row.len() {
            return;
        }
        count *= GROWTH;
    }
}

/// top-p of candidates; at least one is left.
pub(super) fn top_p(candidates: &mut Vec<Candidate>, p: f32) {
    let (top, total) = top_and_mass(candidates);
    cut_at_mass(candidates, f64::from(p) * total, by_rank, |it| it.logit - top);
}

/// Locally typical sampling (Meister et al., 2022, arXiv:2202.00666): the fewest candidates, those whose surprise is
/// nearest the mean surprise first, whose share of the mass reaches `p`; at least one.
pub(super) fn typical_p(candidates: &mut Vec<Candidate>, p: f32) {
    let (top, total) = top_and_mass(candidates);
    let mean: f64 =
        candidates.iter().map(|it| f64::from(exp(it.logit - top)) / total * f64::from(it.logit - top)).sum();
    // -ln p - H = (ln total - x) - (ln total - mean) = mean - x, both relative to the top.
    let centre = (f64::from(top) + mean) as f32;
    let distance = |it: &Candidate| (centre - it.logit).abs();
    let nearest = |left: &Candidate, right: &Candidate| {
        distance(left).total_cmp(&distance(right)).then_with(|| by_rank(left, right))
    };
    cut_at_mass(candidates, f64::from(p) * total, nearest, |it| it.logit - top);
}

/// min-p (Nguyen et al., 2024, arXiv:2407.01082): candidates at least `p` times as likely as the likeliest.
pub(super) fn min_p(candidates: &mut Vec<Candidate>, p: f32) {
    let top = top(candidates);
    candidates.retain(|it| exp(it.logit - top) >= p);
}

/// A floor below which no token survives [`min_p`].
pub(super) fn min_p_floor(row: &[f32], p: f32) -> f32 {
    // A little lower than the bound, which `min_p` then decides with its own arithmetic.
    largest(row) + p.ln() - 1e-3
}

/// XTC (p-e-w, 2024, text-generation-webui pull request 6335): of the candidates of at least the threshold, all
/// but the least likely go. Protected tokens stay.
pub(super) fn exclude_top_choices(candidates: &mut Vec<Candidate>, xtc: Xtc, protected: &[u32]) {
    let (top, total) = top_and_mass(candidates);
    let is_choice = |it: &Candidate| f64::from(exp(it.logit - top)) >= f64::from(xtc.threshold) * total;
    let Some(last) = candidates.iter().copied().filter(is_choice).max_by(by_rank) else { return };
    candidates.retain(|it| !is_choice(it) || *it == last || protected.contains(&it.id));
}

fn top(candidates: &[Candidate]) -> f32 {
    candidates.iter().fold(f32::NEG_INFINITY, |best, it| if it.logit > best { it.logit } else { best })
}

/// The largest logit, and the sum of `exp(x - largest)` in the order of the candidates.
fn top_and_mass(candidates: &[Candidate]) -> (f32, f64) {
    let top = top(candidates);
    (top, candidates.iter().map(|it| f64::from(exp(it.logit - top))).sum())
}

/// Leaves the fewest candidates, first ones of `order` first, whose mass reaches `target`, and at least one; `weight` is the
/// logarithm of a candidate's mass. If all of them do not reach it, all are left, and the answer is false.
fn cut_at_mass(
    candidates: &mut Vec<Candidate>,
    target: f64,
    order: impl Fn(&Candidate, &Candidate) -> Ordering + Copy,
    weight: impl Fn(&Candidate) -> f32,
) -> bool {
    // The mass is nearly always among the first few, and sorting a vocabulary is dear.
    let mut sorted = FIRST;
    loop {
        let count = sorted.min(candidates.len());
        if count < candidates.len() {
            candidates.select_nth_unstable_by(count, order);
        }
        candidates[..count].sort_unstable_by(order);
        let mut mass = 0.0;
        let last = candidates[..count].iter().position(|it| {
            mass += f64::from(exp(weight(it)));
            mass >= target
        });
        if let Some(last) = last {
            candidates.truncate(last + 1);
            return true;
        }
        if count == candidates.len() {
            return false;
        }
        sorted *= GROWTH;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(candidates: &[Candidate]) -> Vec<u32> {
        candidates.iter().map(|candidate| candidate.id).collect()
    }

    fn all(shares: &[f32]) -> Vec<Candidate> {
        (0..).zip(shares).map(|(id, share)| Candidate { id, logit: share.ln() }).collect()
    }

    fn scattered(length: u32) -> Vec<f32> {
        (0..length).map(|place| ((place * 7919) % 4001) as f32 / 400.0).collect()
    }

    #[test]
    fn the_head_is_exact_and_ties_go_to_the_lower_id() {
        let (mut candidates, mut peaks) = (Vec::new(), Vec::new());
        head(&[2.0, 5.0, 2.0, 2.0], 2, &mut candidates, &mut peaks);
        assert_eq!(ids(&candidates), [1, 0]);
        let row = scattered(9000);
        let mut sorted: Vec<u32> = (0..9000).collect();
        sorted.sort_by(|&left, &right| {
            row[right as usize].total_cmp(&row[left as usize]).then(left.cmp(&right))
        });
        for count in [0, 1, 7, 64, 140, 141, 500, 9000] {
            head(&row, count, &mut candidates, &mut peaks);
            assert_eq!(ids(&candidates), sorted[..count], "{count}");
        }
    }

    #[test]
    fn top_p_takes_the_fewest_that_reach_the_mass() {
        for (p, kept) in [(0.4, 1), (0.6, 2), (0.8, 3), (0.95, 4), (1e-9, 1)] {
            let mut row = all(&[0.5, 0.25, 0.15, 0.1]);
            top_p(&mut row, p);
            assert_eq!(row.len(), kept, "p = {p}");
        }
    }

    #[test]
    fn a_nucleus_is_top_p_of_the_whole_row() {
        let row = scattered(6000);
        let (mut fast, mut slow, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
        // The last ones are wider than the first candidates looked at.
        for p in [0.1, 0.5, 0.9, 0.99, 0.9999] {
            nucleus(&row, p, &mut fast, &mut peaks);
            above(&row, f32::NEG_INFINITY, &mut slow);
            top_p(&mut slow, p);
            assert_eq!(ids(&fast), ids(&slow), "p = {p}");
        }
        let flat = vec![0.0; 5000];
        nucleus(&flat, 0.5, &mut fast, &mut peaks);
        assert_eq!(ids(&fast), (0..2500).collect::<Vec<_>>());
    }

    #[test]
    fn min_p_is_a_share_of_the_likeliest() {
        let mut row = all(&[1.0, 0.5, 0.05]);
        min_p(&mut row, 0.1);
        assert_eq!(ids(&row), [0, 1]);
        let mut row = all(&[0.25, 0.25]);
        min_p(&mut row, 1.0);
        assert_eq!(ids(&row), [0, 1]);
    }

    #[test]
    fn typical_p_prefers_what_is_as_surprising_as_the_average() {
        // H = 0.94 nats; the surprises are 0.51, 1.2 and 2.3, so the second is nearest.
        let mut row = all(&[0.6, 0.3, 0.1]);
        typical_p(&mut row, 0.2);
        assert_eq!(ids(&row), [1]);
    }

    #[test]
    fn xtc_leaves_the_least_likely_choice_and_the_protected() {
        let xtc = Xtc { probability: 1.0, threshold: 0.2 };
        let excluded = |protected: &[u32]| {
            let mut row = all(&[0.4, 0.25, 0.3, 0.05]);
            exclude_top_choices(&mut row, xtc, protected);
            ids(&row)
        };
        assert_eq!(excluded(&[]), [1, 3]);
        assert_eq!(excluded(&[0]), [0, 1, 3]);
    }
}
