//! The stages that narrow a row down before the draw. All look at the untempered row, on the host.

use std::cmp::Ordering;

/// A token that may still be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) id: u32,
    pub(crate) logit: f32,
}

/// Falling logit, then rising id: the one order of candidates, so that ties have one answer.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that sorting asks for")]
pub(crate) fn by_rank(left: &Candidate, right: &Candidate) -> Ordering {
    right.logit.total_cmp(&left.logit).then(left.id.cmp(&right.id))
}

/// The likeliest token, the lowest id on ties.
pub(crate) fn argmax(row: &[f32]) -> u32 {
    let mut best = 0;
    for (id, &logit) in row.iter().enumerate() {
        if logit > row[best] {
            best = id;
        }
    }
    best as u32
}

/// The natural logarithm of the sum of `exp(x)` over the row, summed in f64 in the order of ids.
pub(crate) fn log_sum_exp(row: &[f32]) -> f64 {
    let largest = f64::from(row[argmax(row) as usize]);
    largest + row.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum::<f64>().ln()
}

/// Leaves the `count` likeliest candidates, in falling order.
pub(crate) fn keep_likeliest(candidates: &mut Vec<Candidate>, count: usize) {
    if count < candidates.len() {
        candidates.select_nth_unstable_by(count, by_rank);
        candidates.truncate(count);
    }
    candidates.sort_unstable_by(by_rank);
}

/// top-k (Fan et al., 2018, arXiv:1805.04833): the `k` likeliest, exactly `k` on ties; 0 keeps all.
pub(crate) fn top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k > 0 && k < candidates.len() {
        keep_likeliest(candidates, k);
    }
}

/// top-p (Holtzman et al., 2019, arXiv:1904.09751): the fewest likeliest candidates whose share of the candidates'
/// mass reaches `p`; at least one. 1 keeps all.
pub(crate) fn top_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 || candidates.len() < 2 {
        return;
    }
    let largest = candidates.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max);
    let weight = |candidate: &Candidate| f64::from(candidate.logit - largest).exp();
    let total: f64 = candidates.iter().map(weight).sum();
    // Sorting a vocabulary is dear and the mass is nearly always among the first few.
    let mut sorted = 256.min(candidates.len());
    loop {
        if sorted < candidates.len() {
            candidates.select_nth_unstable_by(sorted, by_rank);
        }
        candidates[..sorted].sort_unstable_by(by_rank);
        let mut mass = 0.0;
        let reached = candidates[..sorted].iter().position(|candidate| {
            mass += weight(candidate);
            mass >= f64::from(p) * total
        });
        match reached {
            Some(last) => return candidates.truncate(last + 1),
            None if sorted == candidates.len() => return,
            None => sorted = (sorted * 8).min(candidates.len()),
        }
    }
}

/// min-p (Nguyen et al., 2024, arXiv:2407.01082): candidates at least `p` times as likely as the likeliest.
pub(crate) fn min_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p > 0.0 {
        let largest = candidates.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max);
        candidates.retain(|candidate| f64::from(candidate.logit - largest).exp() >= f64::from(p));
    }
}

/// The candidate at `uniform` of the cumulative distribution of `softmax(logit / temperature)`, in the order given.
pub(crate) fn draw(candidates: &[Candidate], temperature: f32, uniform: f64) -> u32 {
    let largest = candidates.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max);
    let weight =
        |candidate: &Candidate| (f64::from(candidate.logit - largest) / f64::from(temperature)).exp();
    let target = uniform * candidates.iter().map(weight).sum::<f64>();
    let mut mass = 0.0;
    let drawn = candidates.iter().find(|&candidate| {
        mass += weight(candidate);
        mass > target
    });
    // The two sums run in the same order, so the last partial sum is the total and lies above the target.
    drawn.or(candidates.last()).map_or(0, |candidate| candidate.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(logits: &[f32]) -> Vec<Candidate> {
        (0..).zip(logits).map(|(id, &logit)| Candidate { id, logit }).collect()
    }

    fn ids(candidates: &[Candidate]) -> Vec<u32> {
        candidates.iter().map(|candidate| candidate.id).collect()
    }

    #[test]
    fn ties_go_to_the_lower_id_and_the_count_is_exact() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), 1);
        let mut tied = candidates(&[2.0, 5.0, 2.0, 2.0]);
        top_k(&mut tied, 2);
        assert_eq!(ids(&tied), [1, 0]);
    }

    #[test]
    fn top_p_takes_the_smallest_set_that_reaches_the_mass() {
        let logits: Vec<f32> = [0.5f32, 0.25, 0.15, 0.1].iter().map(|share| share.ln()).collect();
        for (p, kept) in [(0.4, 1), (0.6, 2), (0.8, 3), (0.95, 4), (1.0, 4), (1e-9, 1)] {
            let mut row = candidates(&logits);
            top_p(&mut row, p);
            assert_eq!(row.len(), kept, "p = {p}");
        }
    }

    #[test]
    fn top_p_of_a_flat_wide_row_looks_beyond_the_first_candidates() {
        let mut row = candidates(&vec![0.0; 5000]);
        top_p(&mut row, 0.5);
        assert_eq!(row.len(), 2500);
        assert_eq!(row[2499].id, 2499);
    }

    #[test]
    fn min_p_is_a_share_of_the_likeliest() {
        let mut row = candidates(&[0.0, (0.5f32).ln(), (0.05f32).ln()]);
        min_p(&mut row, 0.1);
        assert_eq!(ids(&row), [0, 1]);
    }

    #[test]
    fn the_draw_follows_the_distribution() {
        let row = candidates(&[(0.1f32).ln(), (0.2f32).ln(), (0.7f32).ln()]);
        assert_eq!(draw(&row, 1.0, 0.05), 0);
        assert_eq!(draw(&row, 1.0, 0.15), 1);
        assert_eq!(draw(&row, 1.0, 0.9999), 2);
        // A gap of 100 logits is never bridged, however the sums round.
        let gap = candidates(&[0.0, 100.0, 0.0]);
        for step in 0..1000 {
            assert_eq!(draw(&gap, 1.0, (f64::from(step) + 0.5) / 1000.0), 1);
        }
    }
}
